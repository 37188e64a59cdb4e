"""The command line: `harvest --help`."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

import harvest
from harvest.cli import entities, fleet, letters, operator, output, runs, server
from harvest.cli.loop import run_async
from harvest.cli.modules import load_modules
from harvest.cli.runs import hubs
from harvest.config import HubSettings, WorkerConfig
from harvest.dev.server import DevServer
from harvest.errors import ConfigError, HarvestError
from harvest.hub.database import Database
from harvest.hub.migrate import migrate as run_migrations
from harvest.hub.migrate import plan as plan_migrations
from harvest.node import ShardedWorker, Worker
from harvest.testing.replayer import Replayed, Replayer

app = typer.Typer(help="Durable workflows on Postgres.", no_args_is_help=True, pretty_exceptions_enable=False)
runs.app.registered_commands += operator.app.registered_commands
app.add_typer(runs.app, name="run")
app.add_typer(operator.activity, name="activity")
app.add_typer(letters.app, name="dead-letters")
app.add_typer(entities.app, name="entity")
app.add_typer(fleet.owner, name="owner")
app.add_typer(fleet.sticky, name="sticky")
app.command()(fleet.fleet)
app.command()(fleet.doctor)
app.command("server")(server.server)
app.add_typer(server.token, name="token")
app.command()(server.audit)

Url = Annotated[str, typer.Option("--database-url", envvar="HARVEST_DATABASE_URL", help="postgresql://user@host/database")]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
Modules = Annotated[list[str], typer.Argument(help="Modules with definitions: shop.flows or shop/flows.py")]


def print_version(wanted: bool) -> None:
    if wanted:
        output.console.print(harvest.__version__, highlight=False)
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Durable workflows on Postgres."""


@app.command()
def migrate(
    url: Url = "",
    plan: Annotated[bool, typer.Option("--plan", help="Show what would run, change nothing.")] = False,
    json: Json = False,
) -> None:
    """Bring the hub's schema up to this version."""

    async def work() -> list[Any]:
        done: list[Any] = []
        for address in hubs(url) or [url]:
            async with Database(address, schema=HubSettings().db_schema) as db:
                if plan:
                    done += await plan_migrations(db)
                    continue
                done += await run_migrations(
                    db, None if json else lambda m: output.console.print(f"applied {m.version:04d} {m.name}", highlight=False)
                )
        return done

    done = run_async(work())
    if json:
        output.print_json([{"version": m.version, "name": m.name} for m in done])
    elif plan and done:
        output.print_table(["version", "name"], [[f"{m.version:04d}", m.name] for m in done])
    elif not done:
        output.console.print("nothing to do: the schema is up to date")


@app.command()
def worker(
    modules: Modules,
    queue: Annotated[str, typer.Option(help="The task queue to serve.")] = "default",
    url: Url = "",
    migrate_first: Annotated[bool, typer.Option("--migrate", help="Bring the schema up to date before starting.")] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error")] = "info",
) -> None:
    """Run a worker until SIGTERM; it drains before it ends. Settings come from HARVEST_… variables."""
    output.set_up_logging(log_level)

    async def work() -> None:
        config = WorkerConfig()
        definitions = load_modules(modules)
        if migrate_first:
            for address in hubs(url) or [url]:
                async with Database(address, schema=HubSettings().db_schema) as db:
                    await run_migrations(db)
        shards = hubs(url)
        async with AsyncExitStack() as stack:
            running: Worker | ShardedWorker
            if len(shards) > 1:
                many = await stack.enter_async_context(harvest.connect(shards=shards))
                running = ShardedWorker(many, definitions=definitions, queue=queue, config=config)
            else:
                one = await stack.enter_async_context(harvest.connect(shards[0] if shards else url))
                running = Worker(one, definitions=definitions, queue=queue, config=config)
            if os.environ.get("HARVEST_STOP_AT_EOF"):
                stop_at_eof(running)
            await running.run()

    run_async(work())
    if any(thread.name.startswith("harvest-activity") for thread in threading.enumerate()):
        logging.getLogger("harvest").warning("an activity still runs in a thread; it will run again elsewhere")
        logging.shutdown()
        os._exit(0)  # the interpreter would wait for it


def stop_at_eof(running: Worker | ShardedWorker) -> None:
    """Ends the worker when its standard input does: `harvest dev` holds the other end."""
    loop = asyncio.get_running_loop()

    def wait() -> None:
        while os.read(0, 1024):
            pass
        loop.call_soon_threadsafe(running.stopping.set)

    threading.Thread(target=wait, daemon=True).start()


@app.command()
def dev(
    modules: Modules,
    queue: Annotated[str, typer.Option(help="The task queue to serve.")] = "default",
    data: Annotated[Path, typer.Option(help="Where the embedded Postgres keeps its data.")] = Path(".harvest/pg"),
    url: Annotated[str, typer.Option("--database-url", help="Use this Postgres instead of the embedded one.")] = "",
    port: Annotated[int | None, typer.Option(help="Of the HTTP API and the dashboard.")] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error")] = "info",
) -> None:
    """Embedded Postgres, migrations, API, dashboard and a worker that reloads on save; open runs are replayed first."""
    output.set_up_logging(log_level)
    server = DevServer(modules, queue=queue, data=data, url=url, log_level=log_level, console=output.console, port=port)
    run_async(server.run())


@app.command()
def replay(
    what: Annotated[list[str], typer.Argument(help="History files (.json) and the modules to replay them against.")],
    open_runs: Annotated[bool, typer.Option("--open", help="Replay the open runs of the hub.")] = False,
    queue: Annotated[str | None, typer.Option(help="Only open runs of this queue.")] = None,
    url: Url = "",
    json: Json = False,
) -> None:
    """Do these histories still fit this code? Exit code 1 names those that do not."""
    files = [Path(item) for item in what if item.endswith(".json")]
    modules = [item for item in what if not item.endswith(".json")]
    if not modules:
        raise ConfigError("module", "no module given to replay against", hint="harvest replay history.json shop.flows")
    if not files and not open_runs:
        raise ConfigError("histories", "nothing to replay", hint="give history files, or --open for the open runs of the hub")
    replayer = Replayer(load_modules(modules))
    results = [_replay_file(replayer, path) for path in files]
    if open_runs:
        results += run_async(_replay_open(replayer, url, queue, quiet=json))
    bad = [r for r in results if not r.fits]
    if json:
        output.print_json({"replayed": len(results), "broken": bad})
    else:
        for result in bad:
            output.console.print(f"[red]breaks[/] {result.type} {result.workflow_id}: {result.error}", highlight=False)
        output.console.print(f"{len(results) - len(bad)} of {len(results)} histories fit", highlight=False)
    if bad:
        raise typer.Exit(1)


def _replay_file(replayer: Replayer, path: Path) -> Replayed:
    try:
        return replayer.replay_file(path.read_bytes())
    except OSError as exc:
        raise ConfigError("history", f"cannot read {str(path)!r}: {exc.strerror}") from None
    except HarvestError as exc:
        raise ConfigError("history", f"{str(path)!r}: {exc.message}", hint=exc.hint) from None


async def _replay_open(replayer: Replayer, url: str, queue: str | None, *, quiet: bool) -> list[Replayed]:
    columns = (TextColumn("replaying open runs"), BarColumn(), MofNCompleteColumn())
    async with harvest.connect(url) as client:
        with Progress(*columns, console=output.errors, disable=quiet, transient=True) as progress:
            bar = progress.add_task("", total=await replayer.count_open(client, queue))
            results = []
            async for result in replayer.replay_open(client, queue):
                results.append(result)
                progress.advance(bar)
            return results


def main() -> None:
    """The entry point: errors of Harvest become one clear message and an exit code."""
    try:
        app(standalone_mode=True)
    except HarvestError as error:
        output.print_error(error, as_json="--json" in sys.argv)
        sys.exit(output.exit_code(error))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
