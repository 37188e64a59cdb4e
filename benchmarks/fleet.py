"""Fleets: `python -m benchmarks.fleet [scale failover handover idle backlog modes] [--json FILE]`.

    scale     W1 (local steps) on 1, 2 and 4 worker processes of one hub, driven from another process
    failover  one of three workers is killed (or stopped): seconds until a peer decides each of its runs
    handover  one of three workers is stopped gracefully: the same
    idle      what ten idle workers cost the hub, in per cent of a core
    backlog   one claim of 50 tasks with 1,000 and with 1,000,000 waiting
    modes     W1 in owner mode and in sticky mode, alternating

Every worker is a process of its own; the database is embedded, with fsync on.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import statistics
import sys
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
from rich.console import Console

import harvest
from benchmarks.flows import steps
from benchmarks.measure import latency
from harvest import Client
from harvest.hub import workers, workflow_tasks
from harvest.hub.queries import Query
from tests.faults.cluster import Hub

ROOT = Path(__file__).parents[1]


class Fleet:
    """Worker processes of one hub."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.processes: list[asyncio.subprocess.Process] = []

    async def spawn(self, count: int, **settings: str) -> None:
        for _ in range(count):
            self.processes.append(
                await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "harvest.cli.main", "worker", "benchmarks.flows", "--log-level", "error"),
                    cwd=ROOT,
                    env={**os.environ, "HARVEST_DATABASE_URL": self.hub.dsn, "HARVEST_BENCH_MARKS": os.devnull, **settings},
                )
            )

    async def balanced(self, client: Client) -> None:
        """Waits until every process owns its share."""
        share = -(-512 // len(self.processes))
        while True:
            status = await client.owner_status("default")
            owned = [sum(worker.partitions.values()) for worker in status.workers]
            if len(owned) == len(self.processes) and sum(owned) == 512 and max(owned) <= share + 1:
                return
            await asyncio.sleep(0.05)

    async def end(self, process: asyncio.subprocess.Process, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        await process.wait()
        self.processes.remove(process)

    async def stop(self) -> None:
        await asyncio.gather(*(self.end(process, signal.SIGKILL) for process in list(self.processes)))


@contextlib.asynccontextmanager
async def fleet_of(count: int, **settings: str) -> AsyncIterator[tuple[Hub, Fleet, Client]]:
    hub = Hub()
    await hub.start()
    connection = await asyncpg.connect(hub.dsn)
    await connection.execute("drop trigger watch_writers on harvest.decisions")
    await connection.close()
    fleet = Fleet(hub)
    await fleet.spawn(count, **settings)
    try:
        async with harvest.connect(hub.dsn) as client:
            await fleet.balanced(client)
            yield hub, fleet, client
    finally:
        await fleet.stop()
        await hub.stop()


async def w1(client: Client, runs: int = 200, length: int = 50) -> float:
    """Steps per second of `runs` runs started from this process."""
    tag = uuid.uuid4().hex[:12]
    began = time.perf_counter()
    handles = await asyncio.gather(*(client.start(steps, length, "local", id=f"{tag}-{n}") for n in range(runs)))
    await asyncio.gather(*(handle.result() for handle in handles))
    return runs * length / (time.perf_counter() - began)


async def scale(rounds: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for count in (1, 2, 4):
        async with fleet_of(count) as (_, _, client):
            await w1(client)
            found[f"{count} workers, steps/s"] = round(statistics.median([await w1(client) for _ in range(rounds)]))
    return found


BEATS = 60
LAST = "select max(at) from harvest.decisions where worker_id = $1"
FIRST = """
select e.execution_id, (select min(d.at) from harvest.decisions d where d.execution_id = e.execution_id and d.at > $2
                          and d.worker_id <> $1) - $2 as after
from harvest.executions e where e.execution_id = any($3)
"""


async def take_over(client: Client, fleet: Fleet, number: int, settings: dict[str, str]) -> list[float]:
    """Seconds, for each run of the victim that has a timer each 50 ms, until another worker decides it."""
    connection = await asyncpg.connect(fleet.hub.dsn)
    victim = fleet.processes[0]
    mine = await connection.fetch(
        "select e.execution_id, w.worker_id from harvest.executions e join harvest.partitions p on p.pool = e.pool and"
        " p.partition = e.partition join harvest.workers w using (worker_id) where e.closed_at is null and w.pid = $1",
        victim.pid,
    )
    await asyncio.sleep(random.random())  # at any moment between two scans
    at = await connection.fetchval("select clock_timestamp()")
    if number == signal.SIGSTOP:
        victim.send_signal(number)
    else:
        ending = asyncio.create_task(fleet.end(victim, number))
    ids, worker_id = [row["execution_id"] for row in mine], mine[0]["worker_id"]
    while True:
        rows = await connection.fetch(FIRST, worker_id, at, ids)
        if all(row["after"] is not None for row in rows):
            break
        await asyncio.sleep(0.05)
    if number == signal.SIGSTOP:
        victim.send_signal(signal.SIGCONT)
        await fleet.end(victim, signal.SIGKILL)
    else:
        await ending
    await connection.close()
    await fleet.spawn(1, **settings)
    await fleet.balanced(client)
    return [row["after"].total_seconds() for row in rows]


async def failover(rounds: int, numbers: dict[str, int] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, number in (numbers or {"SIGKILL": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP}).items():
        count = rounds if number != signal.SIGSTOP else max(2, rounds // 4)
        async with fleet_of(3) as (_, fleet, client):
            for n in range(BEATS):
                await client.start("beat", id=f"beat-{n}")
            waits = []
            for _ in range(count):
                waits.append(await take_over(client, fleet, number, {}))
        every = sorted(wait for each in waits for wait in each)
        found[name] = {
            "rounds": count,
            "runs": len(every),
            "p50_s": round(statistics.median(every), 3),
            "max_s": round(every[-1], 3),
            "first_decision_of_a_round_p50_s": round(statistics.median(min(each) for each in waits), 3),
        }
    return found


async def handover(rounds: int) -> dict[str, Any]:
    return await failover(rounds, {"SIGTERM": signal.SIGTERM})


def cpu_of(hub: Hub) -> float:
    """CPU seconds that all processes of the server have used, ended ones left out."""
    postmaster = int((hub.directory / "postmaster.pid").read_text().split()[0])
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == postmaster or int(stat.parent.name) == postmaster:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


async def idle(rounds: int) -> dict[str, Any]:
    async with fleet_of(10) as (hub, _, client):
        await client.start("beat", id="one", delay=3600)
        await asyncio.sleep(5)
        shares, seconds = [], 15.0
        for _ in range(rounds):
            before = cpu_of(hub)
            await asyncio.sleep(seconds)
            shares.append((cpu_of(hub) - before) / seconds * 100)
    return {
        "workers": 10,
        "per cent of a core": round(statistics.median(shares), 2),
        "all rounds": [round(s, 2) for s in shares],
    }


FILL = """
insert into workflow_tasks (execution_id, pool, partition, state, due_at, priority, fresh)
select gen_random_uuid(), 'deep', n % 512, 'pending', hub_now() - (n % 1000) * interval '1 s', n % 3, n % 2 = 0
from generate_series(1, :count::int) n
"""


async def backlog(rounds: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    hub = Hub()
    await hub.start()
    async with harvest.connect(hub.dsn) as client:
        await client.disable_owner_mode()
        me, lock = uuid.uuid4(), 4711
        await workers.register(
            client.db, workers.Registration(me, "deep", ["deep"], "b", lock, 3600, "h", 1, "{}", 1, True, 10)
        )
        session = await client.db.session(timeout=600)
        waiting = 0
        for target in (1_000, 1_000_000):
            await session.fetch(Query("t", FILL), count=target - waiting)
            await session.connection.execute("vacuum analyze harvest.workflow_tasks")
            waiting, times = target, []
            for _ in range(20 * rounds):
                began = time.perf_counter()
                claimed = await workflow_tasks.claim(client.db, pool="deep", worker_id=me, size=50)
                times.append(time.perf_counter() - began)
                assert len(claimed) == 50
                await workflow_tasks.unclaim(client.db, me, {row["execution_id"]: row["claim"] for row in claimed})
            found[f"{target:,} waiting"] = latency(times)
        await session.close()
    await hub.stop()
    return found


async def modes(rounds: int) -> dict[str, Any]:
    figures: dict[str, list[float]] = {"owner": [], "sticky": []}
    async with fleet_of(1) as (_, _, client):
        await w1(client)
        for _ in range(rounds):
            for mode, values in figures.items():
                await (client.disable_owner_mode() if mode == "sticky" else client.enable_owner_mode())
                await w1(client, runs=20)
                values.append(await w1(client))
    found = {f"{mode}, steps/s": round(statistics.median(values)) for mode, values in figures.items()}
    return {**found, "sticky over owner": round(statistics.median(figures["sticky"]) / statistics.median(figures["owner"]), 2)}


PARTS = {"scale": scale, "failover": failover, "handover": handover, "idle": idle, "backlog": backlog, "modes": modes}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="all when none is named")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options, console = parser.parse_args(), Console()
    results = {}
    for name in options.parts or PARTS:
        with console.status(name):
            results[name] = asyncio.run(PARTS[name](options.rounds))
        console.print(f"[bold]{name}[/] {json.dumps(results[name])}", highlight=False, soft_wrap=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
