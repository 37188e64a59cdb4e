"""`harvest run …`: start, look at and steer runs."""

from __future__ import annotations

import json as jsonlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer

import harvest
from harvest import errors
from harvest.cli import output
from harvest.cli.loop import run_async
from harvest.cli.waiting import of_run, waited
from harvest.client import Description, Signalled, WorkflowHandle
from harvest.client.plain import plain
from harvest.config import HubSettings
from harvest.errors import ConfigError

app = typer.Typer(help="Start, look at and steer runs.", no_args_is_help=True)

Url = Annotated[str, typer.Option("--database-url", envvar="HARVEST_DATABASE_URL", help="postgresql://user@host/database")]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
Id = Annotated[str, typer.Argument(help="The workflow id.")]
Args = Annotated[list[str] | None, typer.Argument(help="Arguments, each JSON; what is not JSON is taken as text.")]
Execution = Annotated[
    str | None, typer.Option("--execution-id", help="A particular run of the id; acts go to its live attempt.")
]


def parse_args(args: list[str] | None) -> list[Any]:
    """JSON where it is JSON, else text."""
    parsed = []
    for arg in args or []:
        try:
            parsed.append(jsonlib.loads(arg))
        except ValueError:
            parsed.append(arg)
    return parsed


def parse_execution(text: str | None) -> UUID | None:
    if text is None:
        return None
    try:
        return UUID(text)
    except ValueError:
        raise ConfigError("execution-id", f"{text!r} is not a uuid") from None


def parse_attributes(items: list[str] | None) -> dict[str, Any] | None:
    """`name=value` options as search attributes."""
    attributes = {}
    for item in items or []:
        name, sep, value = item.partition("=")
        if not sep:
            raise ConfigError("attribute", f"{item!r} is not name=value")
        attributes[name] = parse_args([value])[0]
    return attributes or None


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Any]:
    """The hub at `url`, else all of HARVEST_SHARDS."""
    shards = hubs(url)
    if len(shards) < 2:
        async with harvest.connect(shards[0] if shards else url, pool_size=2) as client:
            yield client
        return
    async with harvest.connect(shards=shards, pool_size=2) as several:
        yield several
        if several.unavailable:
            output.print_unavailable(several.unavailable, as_json="--json" in sys.argv)


def hubs(url: str) -> list[str]:
    """What a command is about: one hub, or those of HARVEST_SHARDS. Both in the environment would be a guess."""
    settings = HubSettings()
    if settings.shard_list and url and url == settings.database_url and "--database-url" not in sys.argv:
        raise ConfigError(
            "HARVEST_SHARDS",
            "HARVEST_DATABASE_URL is set as well",
            hint="unset one of them, or say --database-url URL for one hub",
        )
    return [url] if url else settings.shard_list


def on_handle(
    url: str, workflow_id: str, work: Callable[[WorkflowHandle[Any]], Awaitable[Any]], execution: str | None = None
) -> Any:
    async def run() -> Any:
        async with opened(url) as client:
            return await work(client.handle(workflow_id, execution_id=parse_execution(execution)))

    return run_async(run())


def say(json: bool, value: Any, text: str) -> None:
    if json:
        output.print_json(value)
    else:
        output.print_text(text)


@app.command()
def start(
    workflow: Annotated[str, typer.Argument(help="The workflow's name.")],
    args: Args = None,
    id: Annotated[str, typer.Option("--id", help="The workflow id.")] = "",
    queue: str = "default",
    conflict: Annotated[str, typer.Option(help="fail, use_existing or terminate_existing")] = "fail",
    reuse: Annotated[str, typer.Option(help="allow_duplicate, allow_failed or reject_duplicate")] = "allow_duplicate",
    build_id: Annotated[str | None, typer.Option(help="Pin the run to workers of this build.")] = None,
    delay: Annotated[float | None, typer.Option(help="Seconds before the first decision.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds until an attempt ends as TIMED_OUT.")] = None,
    chain_timeout: Annotated[float | None, typer.Option(help="Seconds for all attempts and continuations together.")] = None,
    attempts: Annotated[int | None, typer.Option(min=1, help="Try a failed run again, up to so many attempts.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the result and print it.")] = False,
    url: Url = "",
    json: Json = False,
) -> None:
    """Start a run."""
    if not id:
        raise ConfigError("id", "no workflow id given", hint="--id order-7: the business key; starting it twice is refused")

    async def work() -> tuple[str, Any]:
        async with opened(url) as client:
            handle = await client.start(
                workflow,
                *parse_args(args),
                id=id,
                queue=queue,
                build_id=build_id,
                conflict=conflict,
                reuse=reuse,
                delay=delay,
                timeout=timeout,
                chain_timeout=chain_timeout,
                retry=None if attempts is None else harvest.RetryPolicy(max_attempts=attempts),
            )
            return str(handle.execution_id), await waited(handle.result(), lambda: of_run(handle)) if wait else None

    execution_id, result = run_async(work())
    body = {"workflow_id": id, "execution_id": execution_id, **({"result": result} if wait else {})}
    say(json, body, jsonlib.dumps(result) if wait else f"started {id} ({execution_id})")


@app.command("list")
def list_runs(
    state: Annotated[str | None, typer.Option(help="RUNNING, COMPLETED, FAILED, ...")] = None,
    type: Annotated[str | None, typer.Option(help="The workflow's name.")] = None,
    queue: str | None = None,
    prefix: Annotated[str | None, typer.Option(help="How the workflow id begins.")] = None,
    attribute: Annotated[list[str] | None, typer.Option(help="A search attribute, name=value (JSON or text).")] = None,
    limit: Annotated[int, typer.Option(min=1)] = 50,
    url: Url = "",
    json: Json = False,
) -> None:
    """List runs, newest first."""
    attributes = parse_attributes(attribute)

    async def work() -> list[Any]:
        async with opened(url) as client:
            chosen = None if state is None else state.upper()
            found = client.list(state=chosen, type=type, queue=queue, prefix=prefix, search_attributes=attributes, limit=limit)
            return [run async for run in found]

    rows = run_async(work())
    if json:
        output.print_json(rows)
    else:
        output.print_table(
            ["workflow id", "type", "state", "attempt", "created", "closed"],
            [[r.workflow_id, r.type, r.state, r.attempt, r.created_at, r.closed_at] for r in rows],
        )


@app.command()
def show(id: Id, execution_id: Execution = None, url: Url = "", json: Json = False) -> None:
    """Describe a run: its state, what it waits for, why it failed."""
    described: Description = on_handle(url, id, lambda h: h.describe(), execution_id)
    if json:
        output.print_json(described)
        return
    for name, value in plain(described).items():
        if value not in (None, [], {}, 0):
            text = value if isinstance(value, str) else jsonlib.dumps(value, default=str)
            output.print_text(f"{name:>20}  {text}")


@app.command()
def signal(
    id: Id,
    name: str,
    args: Args = None,
    key: Annotated[str | None, typer.Option(help="Idempotency key: delivered once.")] = None,
    execution_id: Execution = None,
    url: Url = "",
    json: Json = False,
) -> None:
    """Send a signal."""
    sent: Signalled = on_handle(url, id, lambda h: h.signal(name, *parse_args(args), idempotency_key=key), execution_id)
    routed = sent.routed_execution_id
    body = {"signalled": id, **({} if routed is None else {"routed_execution_id": routed})}
    say(json, body, f"signalled {id}{'' if routed is None else f' (its live attempt is {routed})'}")


@app.command()
def query(
    id: Id,
    name: str,
    args: Args = None,
    timeout: float = 10.0,
    execution_id: Execution = None,
    url: Url = "",
    json: Json = False,
) -> None:
    """Ask a run, open or closed."""
    answer = on_handle(url, id, lambda h: h.query(name, *parse_args(args), timeout=timeout), execution_id)
    say(json, answer, jsonlib.dumps(answer, ensure_ascii=False))


@app.command()
def update(
    id: Id,
    name: str,
    args: Args = None,
    update_id: Annotated[str | None, typer.Option(help="The same id acts once and answers each time.")] = None,
    timeout: float = 60.0,
    execution_id: Execution = None,
    url: Url = "",
    json: Json = False,
) -> None:
    """Update a run and print what its handler answers."""
    work = lambda h: h.update(name, *parse_args(args), update_id=update_id, timeout=timeout)  # noqa: E731
    answer = on_handle(url, id, work, execution_id)
    say(json, answer, jsonlib.dumps(answer, ensure_ascii=False))


@app.command()
def cancel(id: Id, reason: str = "", execution_id: Execution = None, url: Url = "", json: Json = False) -> None:
    """Ask a run to cancel; a queued retry is not begun then."""
    on_handle(url, id, lambda h: h.cancel(reason), execution_id)
    say(json, {"cancel_requested": id}, f"asked {id} to cancel")


@app.command()
def terminate(
    id: Id, reason: str = "", timeout: float = 10.0, execution_id: Execution = None, url: Url = "", json: Json = False
) -> None:
    """End a run without asking its code."""
    on_handle(url, id, lambda h: h.terminate(reason, timeout=timeout), execution_id)
    say(json, {"terminated": id}, f"terminated {id}")


@app.command()
def result(
    id: Id,
    execution_id: Execution = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds to wait.")] = None,
    url: Url = "",
    json: Json = False,
) -> None:
    """Wait for the end and print the result; exit code 1 when it did not complete."""

    async def work(handle: WorkflowHandle[Any]) -> Any:
        try:
            return await waited(handle.result(timeout=timeout), lambda: of_run(handle))
        except TimeoutError as exc:
            raise errors.NoAnswer(str(exc)) from None

    found = on_handle(url, id, work, execution_id)
    say(json, found, jsonlib.dumps(found, ensure_ascii=False))


@app.command()
def history(
    id: Id,
    execution_id: Execution = None,
    export: Annotated[Path | None, typer.Option(help="Write the run to this file, for `harvest replay`.")] = None,
    url: Url = "",
    json: Json = False,
) -> None:
    """Show what happened in a run, event by event."""

    async def work(handle: WorkflowHandle[Any]) -> Any:
        if export is not None:
            return await handle.export_history()
        return [event async for event in handle.history()]

    found = on_handle(url, id, work, execution_id)
    if export is not None:
        try:
            export.parent.mkdir(parents=True, exist_ok=True)
            export.write_bytes(found)
        except OSError as exc:
            raise ConfigError("export", f"cannot write {str(export)!r}: {exc.strerror}") from None
        say(json, {"written": str(export)}, f"wrote {export}")
    elif json:
        output.print_json(found)
    else:
        rows = []
        for event in found:
            facts = {k: v for k, v in event["event"].items() if k != "type"}
            rows.append([event["event_id"], event["decision"], event["at"], event["type"], jsonlib.dumps(facts)[:200]])
        output.print_table(["event", "decision", "at", "type", "facts"], rows)
