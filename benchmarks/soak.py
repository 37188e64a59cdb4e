"""Fault after fault against a fleet under load, for as long as you like: `make soak MINUTES=30`.

Three workers behind TCP proxies; SIGKILL, SIGTERM, SIGSTOP past the lease, cut and silent connections, lost wakes, wrong
clocks, terminated backends, restarts and crashes of Postgres; and the switch between the modes. Every acknowledged message is
looked for in the result and in history, every history is replayed, and a trigger watches who writes. Prints one line of JSON
at the end; exit code 1 when anything was violated.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import sys
import time
from collections import Counter, defaultdict

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

import harvest
from tests.faults.cluster import SETTINGS, Cluster, Faults
from tests.faults.ledger import Traffic


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=0, help="stop after so many faults instead")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--width", type=int, default=4, help="conversations at a time")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--mode", choices=("owner", "sticky", "both"), default="both")
    parser.add_argument("--only", nargs="*", help="these kinds of faults only")
    return parser.parse_args()


class Soak:
    def __init__(self, options: argparse.Namespace, console: Console) -> None:
        self.options, self.console = options, console
        self.dice = random.Random(options.seed)
        self.injected: Counter[str] = Counter()
        self.recovered: dict[str, list[float]] = defaultdict(list)

    async def run(self) -> dict[str, object]:
        options = self.options
        async with Cluster(options.workers, **SETTINGS) as cluster, harvest.connect(cluster.hub.dsn, patience=60) as client:
            if options.mode == "sticky":
                await client.disable_owner_mode()
            await cluster.covered(30)
            traffic = Traffic(client, self.dice, width=options.width)
            traffic.start()
            began = time.monotonic()
            await self._inject(cluster, traffic, client)
            counts = await traffic.finish()
            async with cluster.connection() as connection:
                trespasses = await connection.fetchval("select count(*) from harvest.trespasses")
                left = await connection.fetchval("select count(*) from harvest.workflow_tasks")
                decisions = await connection.fetchval("select count(*) from harvest.decisions")
        return {
            "seed": options.seed,
            "mode": options.mode,
            "seconds": round(time.monotonic() - began),
            "faults": sum(self.injected.values()),
            "injected": dict(self.injected),
            "runs_finished": counts.runs,
            "signals": counts.signals,
            "updates": counts.updates,
            "operations": counts.operations,
            "unsure_signals": counts.unsure,
            "decisions": decisions,
            "slowest_recovery_s": {kind: round(max(times), 2) for kind, times in self.recovered.items()},
            "longest_call_s": round(counts.longest_wait, 2),
            "left_open": left,
            "violations": len(counts.violations) + trespasses,
            "examples": counts.violations[:10],
        }

    async def _inject(self, cluster: Cluster, traffic: Traffic, client: harvest.Client) -> None:
        options, faults = self.options, Faults(cluster, self.dice)
        until = time.monotonic() + options.minutes * 60
        columns = (TextColumn("{task.description:>60}"), BarColumn(), TimeRemainingColumn())
        with Progress(*columns, console=self.console, transient=True) as progress:
            bar = progress.add_task("", total=options.rounds or options.minutes * 60)
            while sum(self.injected.values()) < options.rounds if options.rounds else time.monotonic() < until:
                kind = self.dice.choice(options.only) if options.only else faults.draw()
                if options.mode == "both" and self.dice.random() < 0.03:
                    kind = "switch"
                started = time.monotonic()
                try:
                    async with asyncio.timeout(90):
                        await (self._switch(client) if kind == "switch" else faults.inject(kind))
                        await cluster.covered(30)
                except TimeoutError as exc:
                    raise AssertionError(f"{kind} was not over after {time.monotonic() - started:.0f} s") from exc
                traffic.check()
                self.injected[kind] += 1
                self.recovered[kind].append(time.monotonic() - started)
                done = sum(self.injected.values()) if options.rounds else time.monotonic() - until + options.minutes * 60
                bad = len(traffic.counts.violations)
                text = f"{sum(self.injected.values())} faults, {traffic.counts.runs} runs, {bad} violations"
                progress.update(bar, completed=done, description=f"{text}, last {kind}")
                if not self.console.is_terminal:
                    self.console.print(f"{text}; {kind} took {time.monotonic() - started:.2f} s", highlight=False)

    async def _switch(self, client: harvest.Client) -> None:
        for _ in range(100):
            try:
                status = await client.owner_status()
                await (client.disable_owner_mode() if status.mode == "owner" else client.enable_owner_mode())
                return
            except harvest.HarvestError:  # no living worker just now, or the tables are busy
                await asyncio.sleep(0.1)


def main() -> None:
    options, console = arguments(), Console(stderr=True)
    logging.getLogger("asyncpg.pool").setLevel(logging.CRITICAL)
    report = asyncio.run(Soak(options, console).run())
    sys.stdout.write(json.dumps(report) + "\n")
    if report["violations"] or report["left_open"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
