"""`harvest dead-letters …`: runs that nobody can decide, by cause; tried again or put away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any
from uuid import UUID

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from harvest.cli import output
from harvest.cli.loop import run_async
from harvest.cli.modules import load_modules
from harvest.cli.runs import Json, Url, opened, parse_execution, say
from harvest.client import DeadLetter
from harvest.client.plain import plain
from harvest.errors import ConfigError, HarvestError
from harvest.failure import Failure
from harvest.testing.replayer import Replayed, Replayer

app = typer.Typer(help="Runs that nobody can decide, or that reached the cap of history.", no_args_is_help=True)
Which = Annotated[str | None, typer.Argument(help="The execution id; or choose by --type, --queue, --error, --all.")]
Type = Annotated[str | None, typer.Option(help="The workflow's name.")]
Queue = Annotated[str | None, typer.Option(help="Only those of this queue.")]
Error = Annotated[str | None, typer.Option(help="The error's type, as `causes` names it.")]
Everything = Annotated[bool, typer.Option("--all", help="Every dead letter.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


async def _found(client: Any, which: UUID | None, **filters: Any) -> list[DeadLetter]:
    if which is not None:
        return [await client.dead_letters.show(which)]
    return [letter async for letter in client.dead_letters.list(**filters)]


@app.command("list")
def list_letters(
    type: Type = None,
    queue: Queue = None,
    error: Error = None,
    limit: Annotated[int, typer.Option(min=1)] = 50,
    url: Url = "",
    json: Json = False,
) -> None:
    """List them, newest first."""

    async def work() -> list[DeadLetter]:
        async with opened(url) as client:
            return await _found(client, None, type=type, queue=queue, error=error, limit=limit)

    found = run_async(work())
    if json:
        output.print_json(found)
        return
    rows = [
        [d.execution_id, d.workflow_id, d.type, d.state, d.at, f"{d.error.type}: {d.error.message}".partition("\n")[0][:100]]
        for d in found
    ]
    output.print_table(["execution", "workflow id", "type", "state", "at", "error"], rows)


@app.command()
def causes(type: Type = None, queue: Queue = None, url: Url = "", json: Json = False) -> None:
    """Count them by what they died of."""

    async def work() -> Sequence[Any]:
        async with opened(url) as client:
            return await client.dead_letters.causes(type=type, queue=queue)  # type: ignore[no-any-return]

    found = run_async(work())
    if json:
        output.print_json(found)
        return
    rows = [[c.count, c.type, c.error, c.message.partition("\n")[0][:100], c.newest, c.example] for c in found]
    output.print_table(["count", "type", "error", "message", "newest", "example"], rows)


@app.command()
def show(execution_id: str, url: Url = "", json: Json = False) -> None:
    """Show one, with the stack of its error."""
    which = parse_execution(execution_id)

    async def work() -> DeadLetter:
        async with opened(url) as client:
            return (await _found(client, which))[0]

    found = run_async(work())
    if json:
        output.print_json(found)
        return
    for name, value in plain(found).items():
        if name != "error":
            output.print_text(f"{name:>14}  {value}")
    output.print_text(f"{'error':>14}  {found.error.type}: {found.error.message}")
    cause: Failure | None = found.error
    while cause is not None:
        if cause is not found.error:
            output.print_text(f"{'caused by':>14}  {cause.type}: {cause.message}")
        output.print_text(cause.stack or "")
        cause = cause.cause


@app.command()
def redrive(
    execution_id: Which = None,
    type: Type = None,
    queue: Queue = None,
    error: Error = None,
    everything: Everything = False,
    url: Url = "",
    json: Json = False,
) -> None:
    """Have parked runs decided again, with their strikes forgiven."""
    which = _chosen(execution_id, type, queue, error, everything)
    report = run_async(_each(url, which, "redrive", {"type": type, "queue": queue, "error": error}))
    _report(report, "redriven", json)


@app.command()
def discard(
    execution_id: Which = None,
    reason: Annotated[str, typer.Option(help="Why; a run that is open is terminated with it.")] = "",
    type: Type = None,
    queue: Queue = None,
    error: Error = None,
    everything: Everything = False,
    yes: Yes = False,
    url: Url = "",
    json: Json = False,
) -> None:
    """Put dead letters away; their runs are terminated if they are open."""
    which = _chosen(execution_id, type, queue, error, everything)
    output.confirm("Discard them? Runs that are open are terminated.", yes=yes, as_json=json)
    report = run_async(_each(url, which, "discard", {"type": type, "queue": queue, "error": error}, reason))
    _report(report, "discarded", json)


def _chosen(execution_id: str | None, type: str | None, queue: str | None, error: str | None, everything: bool) -> UUID | None:
    by_filter = bool(type or queue or error or everything)
    if (execution_id is not None) is by_filter:
        raise ConfigError("execution-id", "give one, or --type, --queue, --error or --all")
    return parse_execution(execution_id)


async def _each(url: str, which: UUID | None, verb: str, filters: dict[str, Any], *args: Any) -> dict[str, Any]:
    done, failed = 0, []
    async with opened(url) as client:
        act = getattr(client.dead_letters, verb)
        for letter in await _found(client, which, **filters):
            try:
                await act(letter.execution_id, *args)
                done += 1
            except HarvestError as exc:
                if which is not None:
                    raise
                failed.append({"execution_id": letter.execution_id, "error": exc.message})
    return {"done": done, "failed": failed}


def _report(report: dict[str, Any], what: str, json: bool) -> None:
    say(json, {what: report["done"], "failed": report["failed"]}, f"{report['done']} {what}")
    if not json:
        for failed in report["failed"]:
            output.print_text(f"  {failed['execution_id']}: {failed['error']}")
    if report["failed"]:
        raise typer.Exit(1)


@app.command()
def replay(
    modules: Annotated[list[str], typer.Argument(help="Modules with the code to try: shop.flows or shop/flows.py")],
    type: Type = None,
    queue: Queue = None,
    error: Error = None,
    limit: Annotated[int, typer.Option(min=1)] = 1000,
    url: Url = "",
    json: Json = False,
) -> None:
    """Do their histories fit this code? Replays them here and changes nothing; exit code 1 names those that do not."""
    replayer = Replayer(load_modules(modules))
    filters = {"type": type, "queue": queue, "error": error, "limit": limit}
    found = run_async(_replay(replayer, url, filters, quiet=json))
    bad = [r for r in found if not r.fits]
    if json:
        output.print_json({"replayed": len(found), "broken": bad})
    else:
        for result in bad:
            output.print_text(f"breaks {result.type} {result.workflow_id}: {result.error}")
        output.print_text(
            f"{len(found) - len(bad)} of {len(found)} histories fit (the decision that failed is in none: redrive tells)"
        )
    if bad:
        raise typer.Exit(1)


async def _replay(replayer: Replayer, url: str, filters: dict[str, Any], *, quiet: bool) -> list[Replayed]:
    columns = (TextColumn("replaying"), BarColumn(), MofNCompleteColumn())
    async with opened(url) as client:
        letters = await _found(client, None, **filters)
        with Progress(*columns, console=output.errors, disable=quiet, transient=True) as progress:
            bar = progress.add_task("", total=len(letters))
            results = []
            for letter in letters:
                handle = client.handle(letter.workflow_id, execution_id=letter.execution_id)
                results.append(await replayer.replay_handle(handle))
                progress.advance(bar)
            return results
