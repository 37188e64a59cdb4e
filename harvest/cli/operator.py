"""`harvest run …` for the person on call: contain a run, look into it, and do it again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from harvest.cli import output
from harvest.cli.loop import run_async
from harvest.cli.runs import Args, Execution, Id, Json, Url, on_handle, opened, parse_args, parse_attributes, say
from harvest.client import BulkReport, ChainLink, Diagnosis, Note, Span, TaskStack
from harvest.clock import at_us
from harvest.core.standing import Awaitable
from harvest.errors import ConfigError

app = typer.Typer()
Timeout = Annotated[float, typer.Option(help="Seconds to wait for a worker.")]
Reason = Annotated[str, typer.Option(help="Why; it is kept with the run.")]
Author = Annotated[str | None, typer.Option(help="Who says so; else your login name.")]
WIDTH = 60


@app.command()
def pause(id: Id, execution_id: Execution = None, timeout: Timeout = 10.0, url: Url = "", json: Json = False) -> None:
    """Have a run stand still: it takes nothing in and its deadlines wait, until `resume`."""
    on_handle(url, id, lambda h: h.pause(timeout=timeout), execution_id)
    say(json, {"paused": id}, f"paused {id}")


@app.command()
def resume(id: Id, execution_id: Execution = None, url: Url = "", json: Json = False) -> None:
    """Have a paused run go on."""
    on_handle(url, id, lambda h: h.resume(), execution_id)
    say(json, {"resumed": id}, f"resumed {id}")


@app.command()
def reset(
    id: Id,
    decision: Annotated[int | None, typer.Option(help="Go back to the end of this decision; else the last one.")] = None,
    signals: Annotated[str, typer.Option(help="Those that came after it: reapply or drop.")] = "reapply",
    reason: Reason = "",
    execution_id: Execution = None,
    timeout: Timeout = 10.0,
    url: Url = "",
    json: Json = False,
) -> None:
    """Fork a run from one of its decisions; an open one is terminated."""
    new = on_handle(url, id, lambda h: h.reset(decision, signals=signals, reason=reason, timeout=timeout), execution_id)
    body = {"workflow_id": id, "execution_id": str(new.execution_id)}
    say(json, body, f"{id} goes on as {new.execution_id}")


@app.command()
def rerun(
    id: Id,
    new_id: Annotated[str | None, typer.Option("--new-id", help="Start it under another workflow id.")] = None,
    execution_id: Execution = None,
    url: Url = "",
    json: Json = False,
) -> None:
    """Start a new run from the input of an old one."""
    new = on_handle(url, id, lambda h: h.rerun(id=new_id), execution_id)
    say(json, {"workflow_id": new.id, "execution_id": str(new.execution_id)}, f"started {new.id} ({new.execution_id})")


@app.command()
def chain(id: Id, execution_id: Execution = None, url: Url = "", json: Json = False) -> None:
    """List the runs that belong together: attempts, continuations, resets and reruns."""
    found: Sequence[ChainLink] = on_handle(url, id, lambda h: h.chain(), execution_id)
    if json:
        output.print_json(found)
        return
    rows = [
        [
            run.execution_id,
            f"{run.link}{f' from decision {run.reset_decision}' if run.reset_decision else ''}",
            run.attempt,
            run.state,
            run.created_at,
            run.closed_at,
            "(erased)" if run.erased_at else "" if run.failure is None else f"{run.failure.type}: {run.failure.message}"[:100],
        ]
        for run in found
    ]
    output.print_table(["execution", "link", "attempt", "state", "created", "closed", "failure"], rows)


@app.command()
def diagnose(id: Id, execution_id: Execution = None, url: Url = "", json: Json = False) -> None:
    """Say in one sentence why a run is not moving, and which command mends it."""
    found: Diagnosis = on_handle(url, id, lambda h: h.diagnose(), execution_id)
    if json:
        output.print_json(found)
        return
    output.print_text(f"{found.workflow_id}: {found.sentence}")
    if found.command is not None:
        output.print_text(f"  {found.command}")


@app.command()
def stack(id: Id, execution_id: Execution = None, timeout: Timeout = 10.0, url: Url = "", json: Json = False) -> None:
    """Show where the coroutines of a run stand."""
    found: list[TaskStack] = on_handle(url, id, lambda h: h.stack(timeout=timeout), execution_id)
    if json:
        output.print_json(found)
        return
    if not found:
        output.print_text(f"{id} is closed: none of its code is running")
    for task in found:
        output.print_text(f"task {task.task}")
        for frame in task.frames:
            output.print_text(f"  {frame.file}:{frame.line} in {frame.function}")
            if frame.code:
                output.print_text(f"    {frame.code}")


@app.command()
def awaitables(id: Id, execution_id: Execution = None, timeout: Timeout = 10.0, url: Url = "", json: Json = False) -> None:
    """List what a run waits for."""
    found: list[Awaitable] = on_handle(url, id, lambda h: h.awaitables(timeout=timeout), execution_id)
    if json:
        output.print_json(found)
        return
    rows = [[a.kind, a.name, a.seq, None if a.due_us is None else at_us(a.due_us), a.where] for a in found]
    output.print_table(["kind", "name", "seq", "due", "where"], rows)


@app.command()
def timeline(id: Id, execution_id: Execution = None, url: Url = "", json: Json = False) -> None:
    """Draw what a run did when."""
    found: Sequence[Span] = on_handle(url, id, lambda h: h.timeline(), execution_id)
    if json:
        output.print_json(found)
        return
    first = min(span.started_at for span in found)
    last = max(span.ended_at or datetime.now(UTC) for span in found)
    rows = [
        [s.kind, s.name, s.started_at, s.outcome or ("" if s.ended_at else "under way"), _bar(s, first, last)] for s in found
    ]
    output.print_table(["kind", "name", "began", "outcome", f"{first:%H:%M:%S} … {last:%H:%M:%S}"], rows)


def _bar(span: Span, first: datetime, last: datetime) -> str:
    width = min(WIDTH, max(12, output.console.width - 68))
    whole = max((last - first).total_seconds(), 1e-6)
    begin = int((span.started_at - first).total_seconds() / whole * (width - 1))
    end = width - 1 if span.ended_at is None else int((span.ended_at - first).total_seconds() / whole * (width - 1))
    return " " * begin + ("·" if span.ended_at == span.started_at else "━" * max(1, end - begin))


@app.command()
def triage(
    id: Id,
    note: Annotated[str | None, typer.Argument(help="What you found; without it the notes are listed.")] = None,
    status: Annotated[str, typer.Option(help="open, investigating or resolved")] = "investigating",
    author: Author = None,
    execution_id: Execution = None,
    url: Url = "",
    json: Json = False,
) -> None:
    """Add a post-mortem note to a run, or list them."""
    if note is not None:
        on_handle(url, id, lambda h: h.triage(note, status=status, author=author), execution_id)
        say(json, {"noted": id}, f"noted on {id}")
        return
    found: Sequence[Note] = on_handle(url, id, lambda h: h.triage_notes(), execution_id)
    if json:
        output.print_json(found)
    else:
        output.print_table(["at", "author", "status", "note"], [[n.at, n.author, n.status, n.note] for n in found])


@app.command()
def hold(
    id: Id,
    reason: Annotated[str | None, typer.Argument(help="Why it must be kept.")] = None,
    lift: Annotated[bool, typer.Option("--lift", help="Lift the hold.")] = False,
    author: Author = None,
    execution_id: Execution = None,
    url: Url = "",
    json: Json = False,
) -> None:
    """Keep a run from being erased, or lift that hold."""
    if lift is (reason is not None):
        raise ConfigError("reason", "give a reason, or --lift", hint='harvest run hold ID "case 17"')
    run = on_handle(url, id, lambda h: h.describe(), execution_id)
    this = str(run.execution_id)
    if lift:
        on_handle(url, id, lambda h: h.lift_hold(), this)
    else:
        on_handle(url, id, lambda h: h.hold(reason or "", author=author), this)
    what = "lifted the hold on" if lift else "holding"
    say(
        json,
        {"held": not lift, "workflow_id": id, "execution_id": this},
        f"{what} {id}, attempt {run.attempt} (execution {this})",
    )


@app.command()
def erase(
    id: Id,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    execution_id: Execution = None,
    url: Url = "",
    json: Json = False,
) -> None:
    """Overwrite every payload of a closed run, for good."""
    run = on_handle(url, id, lambda h: h.describe(), execution_id)
    which = f"{id}, attempt {run.attempt} (execution {run.execution_id}, {run.state})"
    output.confirm(f"Erase the payloads of {which}? They cannot be brought back.", yes=yes, as_json=json)
    count = on_handle(url, id, lambda h: h.erase(), str(run.execution_id))
    body = {"erased": id, "execution_id": run.execution_id, "decisions": count}
    say(json, body, f"erased the payloads of {which}: {count} decisions. `harvest run chain` lists the others")


@app.command()
def bulk(
    verb: Annotated[str, typer.Argument(help="cancel, terminate, signal, pause or resume")],
    args: Args = None,
    signal: Annotated[str | None, typer.Option(help="The signal's name, with the verb signal.")] = None,
    state: Annotated[str | None, typer.Option(help="RUNNING or PAUSED; else both.")] = None,
    type: Annotated[str | None, typer.Option(help="The workflow's name.")] = None,
    queue: str | None = None,
    prefix: Annotated[str | None, typer.Option(help="How the workflow id begins.")] = None,
    attribute: Annotated[list[str] | None, typer.Option(help="A search attribute, name=value (JSON or text).")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every open run.")] = False,
    reason: Reason = "",
    limit: Annotated[int | None, typer.Option(min=1)] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Act; without it the dry run asks.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    url: Url = "",
    json: Json = False,
) -> None:
    """Act on all open runs that match. A dry run comes first."""
    options: dict[str, Any] = {
        "state": state,
        "type": type,
        "queue": queue,
        "prefix": prefix,
        "search_attributes": parse_attributes(attribute),
        "signal": signal,
        "args": tuple(parse_args(args)),
        "reason": reason,
        "everything": everything,
        "limit": limit,
    }
    seen = run_async(_bulk(url, verb, options, dry_run=True))
    if not json:
        _show_dry_run(seen)
    if dry_run or not seen.matched:
        seen.dry_run = dry_run
        if json:
            output.print_json(seen)
        return
    if not yes:
        if json:
            raise ConfigError("yes", f"{seen.matched} runs match", hint="--yes acts on them, --dry-run only shows them")
        typer.confirm(f"{verb} these {seen.matched} runs?", abort=True, err=True)
    options["before"] = seen.before  # what was shown, and nothing newer
    report = run_async(_bulk(url, verb, options, dry_run=False, quiet=json))
    if json:
        output.print_json(report)
    else:
        output.print_text(f"{verb}: {report.done} of {report.matched} runs")
        if report.stored:
            output.print_text(f"  {report.stored} requests are stored, and no worker has carried them out yet")
        for failed in report.failed:
            output.print_text(f"  {failed.workflow_id}: {failed.error}")
    if report.failed:
        raise typer.Exit(1)


def _show_dry_run(seen: BulkReport) -> None:
    output.print_text(f"{seen.matched} open runs match")
    if seen.sample:
        output.print_table(["workflow id", "type", "state"], [[t.workflow_id, t.type, t.state] for t in seen.sample])
    if seen.matched > len(seen.sample):
        output.print_text(f"… and {seen.matched - len(seen.sample)} more")


async def _bulk(url: str, verb: str, options: dict[str, Any], *, dry_run: bool, quiet: bool = True) -> BulkReport:
    columns = (TextColumn(verb), BarColumn(), MofNCompleteColumn())
    async with opened(url) as client:
        with Progress(*columns, console=output.errors, disable=quiet, transient=True) as progress:
            bar = progress.add_task("", total=None)

            def moved(report: BulkReport) -> None:
                progress.update(bar, total=report.matched, completed=report.done + report.stored + len(report.failed))

            report: BulkReport = await client.bulk(verb, dry_run=dry_run, progress=moved, **options)
            return report


activity = typer.Typer(help="Act on one activity of a run.", no_args_is_help=True)
Seq = Annotated[int, typer.Argument(help="The activity's number: `harvest activity list ID`.")]


@activity.command("list")
def list_activities(id: Id, execution_id: Execution = None, url: Url = "", json: Json = False) -> None:
    """List the activities of a run that are under way."""
    found = on_handle(url, id, lambda h: h.describe(), execution_id).activities
    if json:
        output.print_json(found)
        return
    rows = [[a["seq"], a["name"], a["queue"], a["state"], a["attempt"], _said(a["failure"])] for a in found]
    output.print_table(["seq", "name", "queue", "state", "attempt", "last failure"], rows)


def _said(failure: dict[str, Any] | None) -> str:
    return "" if failure is None else f"{failure.get('type', 'Exception')}: {failure['message']}"[:100]


@activity.command("retry-now")
def retry_now(id: Id, seq: Seq, execution_id: Execution = None, url: Url = "", json: Json = False) -> None:
    """Try a waiting activity at once, whatever its back-off."""
    on_handle(url, id, lambda h: h.retry_activity(seq), execution_id)
    say(json, {"retried": seq, "workflow_id": id}, f"activity {seq} of {id} is due now")


@activity.command("fail-now")
def fail_now(id: Id, seq: Seq, reason: Reason = "", execution_id: Execution = None, url: Url = "", json: Json = False) -> None:
    """End an activity as failed; it is not tried again."""
    on_handle(url, id, lambda h: h.fail_activity(seq, reason), execution_id)
    say(json, {"failed": seq, "workflow_id": id}, f"activity {seq} of {id} has failed")
