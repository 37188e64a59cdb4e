"""`python -m benchmarks [W1 E2 …] [--compare dbos] [--slow-commits] [--mode sticky] [--rounds 3] [--json FILE]`."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import asyncpg
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table

import harvest
from benchmarks.entities import ENTITY_WORKLOADS
from benchmarks.measure import floor, median_of
from benchmarks.peers import PACKAGES, Peer
from benchmarks.peers import WORKLOADS as PEER_WORKLOADS
from benchmarks.workloads import MAIN_FIELD, make_worker, spawn_worker, up, warm_up
from benchmarks.workloads import WORKLOADS as RUN_WORKLOADS
from harvest.cli.loop import run_async
from harvest.hub.database import Database
from harvest.hub.embedded import EmbeddedPostgres
from harvest.hub.migrate import migrate

WORKLOADS = {**RUN_WORKLOADS, **ENTITY_WORKLOADS}
SLOW = ("W1", "W2", "W3")
"""Workloads that are measured again with every commit slowed to 2 ms."""


async def recreate(server: str, name: str) -> None:
    connection = await asyncpg.connect(server)
    await connection.execute(f'drop database if exists "{name}" with (force)')
    await connection.execute(f'create database "{name}"')
    await connection.close()


async def slow_commits(server: str, on: bool) -> None:
    connection = await asyncpg.connect(server)
    for setting in ("commit_delay = 2000", "commit_siblings = 0"):
        await connection.execute(f"alter system {'set ' + setting if on else 'reset ' + setting.split()[0]}")
    await connection.execute("select pg_reload_conf()")
    await connection.close()
    await asyncio.sleep(0.5)


class Bench:
    def __init__(self, server: EmbeddedPostgres, options: argparse.Namespace, console: Console) -> None:
        self.server, self.options, self.console = server, options, console
        self.results: dict[str, dict[str, dict[str, Any]]] = {}

    async def run(self) -> None:
        await recreate(self.server.url(), "bench")
        dsn = self.server.url("bench")
        db = Database(dsn)
        await db.open()
        await migrate(db)
        await db.close()
        async with AsyncExitStack() as stack:
            peer = None
            if self.options.compare:
                await recreate(self.server.url(), "bench_peer")
                peer = await stack.enter_async_context(Peer(self.options.compare, self.server.url("bench_peer")))
            client = await stack.enter_async_context(harvest.connect(dsn))
            if self.options.mode == "sticky":
                await client.disable_owner_mode()
            await stack.enter_async_context(make_worker(client))
            await warm_up(client)
            await self.measure(client, peer, await floor(dsn), "")
            if self.options.slow_commits:
                await slow_commits(self.server.url(), True)
                try:
                    await self.measure(client, None, await floor(dsn), ", commits +2 ms", only=SLOW)
                finally:
                    await slow_commits(self.server.url(), False)

    async def measure(
        self, client: Any, peer: Peer | None, limit: dict[str, float], suffix: str, only: tuple[str, ...] = ()
    ) -> None:
        columns = (SpinnerColumn(), TextColumn("{task.description}"))
        with Progress(*columns, console=self.console, transient=True) as progress:
            bar = progress.add_task("")
            for name in self.options.workloads:
                if only and name not in only:
                    continue
                measure, variants = WORKLOADS[name]
                for number, variant in enumerate(variants):
                    progress.update(bar, description=f"{name} {variant}{suffix}")
                    ours, theirs = [], []
                    async with AsyncExitStack() as stack:
                        if (name, variant) in (("W7", "elsewhere"), ("E2", "elsewhere")):
                            await stack.enter_async_context(Elsewhere(client))
                        for _ in range(self.options.rounds):
                            ours.append(await measure(client, variant))
                            if peer is not None and number == 0 and name in PEER_WORKLOADS[peer.name]:
                                theirs.append(await peer.run(name))
                    self.note(name, variant + suffix, median_of(ours), limit, peer, theirs)

    def note(
        self,
        name: str,
        variant: str,
        ours: dict[str, Any],
        limit: dict[str, float],
        peer: Peer | None,
        theirs: list[dict[str, Any]],
    ) -> None:
        entry: dict[str, Any] = {"harvest": ours, "floor": limit}
        if peer is not None and theirs:
            entry[peer.name] = median_of(theirs)
            field = MAIN_FIELD[name]
            a, b = ours[field], entry[peer.name][field]
            entry["ratio"] = round(a / b if name == "W1" else b / a, 2)
        self.results.setdefault(name, {})[variant] = entry

    def table(self) -> Table:
        title = f"medians of {self.options.rounds} rounds"
        table = Table(title=title, header_style="bold")
        for column in ("", "variant", "harvest", *([self.options.compare, "ratio"] if self.options.compare else [])):
            table.add_column(column)
        for name, variants in self.results.items():
            for variant, entry in variants.items():
                row = [name, variant, figures(entry["harvest"])]
                if self.options.compare:
                    row += [figures(entry.get(self.options.compare, {})), str(entry.get("ratio", ""))]
                table.add_row(*row)
        return table


class Elsewhere:
    """A worker in another process, for the queue `elsewhere`."""

    def __init__(self, client: Any) -> None:
        self.client = client

    async def __aenter__(self) -> None:
        marks = Path(tempfile.mkdtemp()) / "marks"
        marks.touch()
        self.process = await spawn_worker(self.client, "elsewhere", marks)
        await up(marks, self.process.pid)

    async def __aexit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        await self.process.wait()


def figures(values: dict[str, Any]) -> str:
    return "  ".join(f"{name}={value:,}" for name, value in values.items())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("workloads", nargs="*", help=f"{', '.join(WORKLOADS)}; all when none is named")
    parser.add_argument("--compare", choices=sorted(PACKAGES), help="run a peer beside, alternating")
    parser.add_argument("--slow-commits", action="store_true", help="measure W1 to W3 again with every commit slowed to 2 ms")
    parser.add_argument("--mode", choices=("owner", "sticky"), default="owner", help="how the hub takes decisions")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    options.workloads = [name.upper() for name in options.workloads] or list(WORKLOADS)
    unknown = sorted(set(options.workloads) - set(WORKLOADS))
    if unknown:
        parser.error(f"no workload {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    return options


def main() -> None:
    options, console = arguments(), Console()
    os.environ.setdefault("HARVEST_BENCH_MARKS", os.devnull)
    directory = Path(tempfile.gettempdir()) / f"harvest-bench-{os.getuid()}" / "pg"
    with EmbeddedPostgres(directory) as server:
        bench = Bench(server, options, console)
        run_async(bench.run())
    console.print(bench.table())
    floors = {json.dumps(entry["floor"]): entry["floor"] for variants in bench.results.values() for entry in variants.values()}
    for limit in floors.values():
        console.print(f"the bare limit of this Postgres: {figures(limit)}", highlight=False)
    if options.json:
        options.json.write_text(json.dumps(bench.results, indent=1) + "\n")
        console.print(f"wrote {options.json}", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
