"""`harvest entity …`: look at entities, call them, ask them in SQL."""

from __future__ import annotations

import csv
import sys
from enum import StrEnum
from typing import Annotated, Any

import typer

from harvest.cli import output
from harvest.cli.loop import run_async
from harvest.cli.runs import Args, Json, Url, opened, parse_args, say
from harvest.cli.waiting import of_queue, waited
from harvest.client import EntityHandle
from harvest.client.plain import plain
from harvest.entity_sql import SqlError, SqlRefused
from harvest.entity_sql import plain as plain_cell
from harvest.errors import ConfigError, EntityNotFound, HarvestError
from harvest.ids import entity_id
from harvest.words import plural

app = typer.Typer(help="Look at entities, call them, ask them in SQL.", no_args_is_help=True)


class Format(StrEnum):
    table = "table"
    json = "json"
    csv = "csv"


Type = Annotated[str, typer.Argument(help="The entity type; its case does not matter where that is clear.")]
Key = Annotated[str, typer.Argument(help="The key.")]
Queue = Annotated[str, typer.Option(help="The task queue whose workers keep it.")]
As = Annotated[Format, typer.Option("--format", help="table, json or csv")]


async def named(client: Any, type: str) -> str:
    """The type as it is called, for one that was typed in another case."""
    known = await client.entity_types()
    same = [name for name in known if name.lower() == type.lower()]
    return same[0] if type not in known and len(same) == 1 else type


def write(columns: list[str], rows: list[list[Any]], form: Format, *, title: str | None = None) -> None:
    """Rows as a table, as JSON objects (one line, one list), or as CSV with a header."""
    if form is Format.json:
        output.print_json([dict(zip(columns, row, strict=True)) for row in rows])
    elif form is Format.csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
    else:
        output.print_table(columns, rows, title=title)


def form_of(form: Format, json: bool) -> Format:
    return Format.json if json else form


@app.command("list")
def list_entities(
    type: Annotated[str, typer.Argument(help="The entity type; without it, all types with their counts.")] = "",
    prefix: Annotated[str, typer.Option(help="Only keys that begin with this.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 100,
    form: As = Format.table,
    url: Url = "",
    json: Json = False,
) -> None:
    """List live entities of a type by key, or the types."""
    form = form_of(form, json)

    async def work() -> tuple[list[str], list[list[Any]]]:
        async with opened(url) as client:
            if not type:
                return ["type", "entities"], [list(item) for item in (await client.entity_types()).items()]
            found = [e async for e in client.entities(await named(client, type), prefix=prefix, limit=limit)]
            columns = ["key", "queue", "partition", "event_id", "version", "bytes", "created_at", "updated_at"]
            return columns, [[getattr(each, column) for column in columns] for each in found]

    columns, rows = run_async(work())
    if form is not Format.table:
        rows = [[plain(cell) for cell in row] for row in rows]
    write(columns, rows, form)
    if form is Format.table and type and len(rows) == limit:
        output.errors.print(f"the first {limit}; more with --limit", style="dim")


def on_entity(url: str, type: str, key: str, queue: str, work: Any) -> Any:
    async def run() -> Any:
        async with opened(url) as client:
            return await work(client.entity(await named(client, type), key, queue=queue))

    return run_async(run())


@app.command()
def show(type: Type, key: Key, url: Url = "", json: Json = False) -> None:
    """Show an entity: its state now, and where it lives."""

    async def work(entity: EntityHandle) -> tuple[Any, Any]:
        summary = await entity.describe()
        return summary, await entity.state()

    summary, state = on_entity(url, type, key, "default", work)
    if json:
        output.print_json({**plain(summary), "state": state})
        return
    facts = {
        "run": f"{entity_id(summary.type, summary.key)} ({summary.execution_id})",
        "queue": summary.queue,
        "partition": summary.partition,
        "since": output.moment(summary.created_at),
        "recorded": f"event {summary.event_id} at {output.moment(summary.updated_at)}, version {summary.version}",
    }
    output.print_table(["", ""], [[name, value] for name, value in facts.items()], title=f"{summary.type} {summary.key}")
    output.console.print_json(data=state)


@app.command()
def call(
    type: Type,
    key: Key,
    operation: Annotated[str, typer.Argument(help="The operation's name.")],
    args: Args = None,
    idempotency_key: Annotated[str | None, typer.Option(help="The same key acts once and answers each time.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the answer.")] = 60.0,
    queue: Queue = "default",
    url: Url = "",
    json: Json = False,
) -> None:
    """Call an operation and print what it returns; the entity comes about with its first one.

    Put -- before arguments that begin with a dash: harvest entity call Account a add -- -5
    """

    async def run() -> Any:
        async with opened(url) as client:
            entity = client.entity(await named(client, type), key, queue=queue)
            asked = entity.call(operation, *parse_args(args), idempotency_key=idempotency_key, timeout=timeout)
            return await waited(asked, lambda: of_queue(client, queue))

    output.print_json(run_async(run()))


@app.command()
def query(
    type: Type,
    key: Key,
    name: Annotated[str, typer.Argument(help="The query's name.")],
    args: Args = None,
    url: Url = "",
    json: Json = False,
) -> None:
    """Ask a query and print its answer."""
    output.print_json(on_entity(url, type, key, "default", lambda entity: entity.query(name, *parse_args(args))))


@app.command()
def delete(
    type: Type,
    key: Key,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the end.")] = 60.0,
    url: Url = "",
    json: Json = False,
) -> None:
    """End an entity, after the operations that were called before."""
    on_entity(url, type, key, "default", lambda entity: entity.describe())  # is there one at all?
    if not yes and not json and not typer.confirm(f"Delete {type} {key}? Its state will be gone"):
        raise typer.Exit(1)
    on_entity(url, type, key, "default", lambda entity: entity.delete(timeout=timeout))
    say(json, {"deleted": {"type": type, "key": key}}, f"deleted {type} {key}")


@app.command()
def sql(
    type: Type,
    question: Annotated[
        list[str], typer.Argument(metavar="[KEY] SQL", help="A SELECT over `entity`; with a key, of that one alone.")
    ],
    param: Annotated[list[str] | None, typer.Option("--param", "-p", help="A value for the next `?`; JSON, else text.")] = None,
    form: As = Format.table,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the owners.")] = 10.0,
    url: Url = "",
    json: Json = False,
) -> None:
    """Ask in SQL: of one entity, or of all of a type.

    The table is entity (type, key, state, event_id, updated_at); fields are read as state ->> '$.field'.
    """
    if len(question) > 2:
        raise ConfigError("sql", f"takes a key and a query, got {len(question)} words", hint="put the query in quotes")
    query, params = question[-1], parse_args(param)
    try:
        if len(question) == 2:
            found = on_entity(url, type, question[0], "default", lambda entity: entity.sql(query, params, timeout=timeout))
        else:
            found = run_async(_fleet(url, type, query, params, timeout))
    except SqlError as exc:
        raise told(exc, query) from None
    if getattr(found, "unanswered", None) and not found.freshness:
        raise HarvestError("nobody answered: " + "; ".join(each.reason for each in found.unanswered))
    form = form_of(form, json)
    rows = [[plain_cell(value) for value in row] for row in found.rows]
    write(found.columns, [[_cell(value) for value in row] for row in rows] if form is Format.table else rows, form)
    notes(found, len(question) == 2, as_json=form is Format.json)
    if getattr(found, "unanswered", None):
        raise typer.Exit(3)


async def _fleet(url: str, type: str, query: str, params: list[Any], timeout: float) -> Any:
    async with opened(url) as client:
        name = await named(client, type)
        if not (await client.entity_types()).get(name):
            raise EntityNotFound(f"there are no entities of type {type!r}", hint="harvest entity list")
        return await client.query_entities_sql(name, query, params, timeout=timeout)


def _cell(value: Any) -> Any:
    return "NULL" if value is None else value


def notes(found: Any, one: bool, *, as_json: bool) -> None:
    """On stderr, where the answer is from, and what is missing in it."""
    if one:
        if not as_json:
            output.errors.print(f"{len(found)} rows; state of event {found.event_id}, from {found.source}", style="dim")
        return
    if as_json:
        if found.unanswered:
            output.print_unavailable(found.unanswered, as_json=True)
        return
    workers = {each.worker_id for each in found.freshness}
    entities = sum(each.entities for each in found.freshness)
    of = f"{plural(entities, 'entity', 'entities')} of {plural(len(workers), 'worker')}"
    output.errors.print(f"{plural(len(found), 'row')}; {of}", style="dim")
    for missing in found.unanswered:
        where = (
            f"shard {missing.shard}" if not missing.partitions else f"{len(missing.partitions)} partitions of {missing.pool!r}"
        )
        output.errors.print(f"[yellow]missing[/] {where}: {missing.reason}", highlight=False, soft_wrap=True)


class SqlProblem(ConfigError):
    """A query that cannot be answered, with the place of the mistake shown."""

    def __init__(self, exc: SqlError, query: str) -> None:
        super().__init__("sql", exc.message)
        self.is_called, self.line, self.column = type(exc).__name__, exc.line, exc.column
        self.limit = getattr(exc, "limit", None)
        lines = query.split("\n")
        if exc.line is not None and exc.column is not None and 0 < exc.line <= len(lines):
            shown = f"line {exc.line}, column {exc.column}\n  {lines[exc.line - 1]}\n  {' ' * (exc.column - 1)}^"
            self.message = f"{self.message}\n  {shown}"


def told(exc: SqlError, query: str) -> HarvestError:
    if isinstance(exc, SqlRefused) or exc.line is not None or type(exc) is SqlError:
        return SqlProblem(exc, query)
    error = HarvestError(f"sql: {exc.message}")
    error.is_called, error.limit = type(exc).__name__, getattr(exc, "limit", None)  # type: ignore[attr-defined]
    return error
