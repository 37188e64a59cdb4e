"""The demonstration: run the month, kill the worker half-way, finish on another; then fly every plane as an entity and ask
questions in SQL. All of it is checked against the file."""

from __future__ import annotations

import asyncio
import csv
import gzip
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

import harvest
from examples.flights import fleet
from examples.flights.flows import DATA, Day, DayReport, Month, Report, day_id
from harvest import errors
from harvest.hub.database import Database
from harvest.hub.embedded import EmbeddedPostgres
from harvest.hub.migrate import migrate

FLIGHTS = 27_004
DAYS = list(range(1, 32))
console = Console()


async def start_worker(url: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "harvest.cli.main", "worker", "examples.flights.flows", "--queue", "flights"),
        *("--log-level", "warning"),
        env={**os.environ, "HARVEST_DATABASE_URL": url},
    )


class Watch:
    """Asks each day for its progress, and approves those that are done."""

    def __init__(self, client: harvest.Client, month: str) -> None:
        self.client, self.month = client, month
        self.done: dict[int, int] = dict.fromkeys(DAYS, 0)

    @property
    def count(self) -> int:
        return sum(self.done.values())

    async def days(self) -> None:
        async with asyncio.TaskGroup() as group:
            for day in DAYS:
                group.create_task(self._day(day))

    async def _day(self, day: int) -> None:
        handle = self.client.handle(day_id(self.month, day), Day)
        while True:
            try:
                flights, total = await handle.query(Day.progress, timeout=2.0)
                self.done[day] = max(self.done[day], flights)
                if total and flights == total:
                    await handle.signal(Day.approve, "the demo", idempotency_key="approve")
                    return
            except (errors.QueryTimeout, errors.QueryFailed, errors.WorkflowNotFound):
                pass  # not started yet, or no worker alive at the moment
            await asyncio.sleep(0.1)


async def demonstrate(url: str) -> list[DayReport]:
    month = f"january-{int(time.time())}"
    async with harvest.connect(url) as client:
        worker = await start_worker(url)
        began = time.perf_counter()
        handle = await client.start(Month, DAYS, id=month, queue="flights")
        watch = Watch(client, month)
        result, watching = asyncio.create_task(handle.result()), asyncio.create_task(watch.days())
        killed = False
        columns = (
            TextColumn("[bold]{task.description}"),
            BarColumn(40),
            TaskProgressColumn(),
            TextColumn("{task.completed:,}"),
        )
        with Progress(*columns, TextColumn("of {task.total:,} flights"), TimeElapsedColumn(), console=console) as progress:
            bar = progress.add_task("flights", total=FLIGHTS)
            while not result.done():
                progress.update(bar, completed=watch.count)
                if not killed and watch.count >= FLIGHTS / 2:
                    killed, old = True, worker
                    old.kill()
                    await old.wait()
                    worker = await start_worker(url)
                    progress.console.print(
                        f"[red]SIGKILL[/] to worker {old.pid} after {watch.count:,} flights; [green]{worker.pid}[/] takes over",
                        highlight=False,
                    )
                await asyncio.wait({result}, timeout=0.02)
            reports = await result
            progress.update(bar, completed=sum(r.flights for r in reports))
        spent = time.perf_counter() - began
        await watching
        worker.send_signal(signal.SIGTERM)
        await worker.wait()
        kill = "one kill -9 included" if killed else "over before the worker could be killed"
        console.print(f"{FLIGHTS:,} flights in {spent:.1f} s, {kill}", highlight=False)
        console.print(f"runs in the hub: {await client.counts()}", highlight=False)
    return reports


def directly() -> Report:
    """The same totals by a plain loop over the file: nothing of the workflows is used."""
    with gzip.open(DATA, "rt") as file:
        rows = list(csv.DictReader(file))
    left: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        if row["dep_delay"] != "NA":
            left.setdefault((row["time_hour"][:10], row["dest"]), []).append(int(row["sched_dep_time"]))
    total = Report()
    for row in rows:
        total.flights += 1
        if row["dep_delay"] == "NA":
            total.cancelled += 1
            later = left.get((row["time_hour"][:10], row["dest"]), [])
            total.rebooked += any(at > int(row["sched_dep_time"]) for at in later)
        else:
            total.minutes += max(0, int(row["dep_delay"]))
            total.late += int(row["dep_delay"]) >= 15
    return total


def show(reports: list[DayReport]) -> Report:
    total = Report()
    table = Table(title="New York, January 2013", header_style="bold")
    for column in ("day", "flights", "cancelled", "rebooked", "late", "delay, minutes"):
        table.add_column(column, justify="right")
    for report in reports:
        total = total.plus(report)
        values = (report.flights, report.cancelled, report.rebooked, report.late, report.minutes)
        table.add_row(str(report.day), *(f"{value:,}" for value in values))
    table.add_section()
    values = (total.flights, total.cancelled, total.rebooked, total.late, total.minutes)
    table.add_row("all", *(f"{value:,}" for value in values), style="bold")
    console.print(table)
    return total


async def main() -> int:
    given = os.environ.get("HARVEST_DEMO_DSN")
    directory = Path(tempfile.mkdtemp(prefix="harvest-demo-"))
    postgres = None if given else EmbeddedPostgres(directory / "pg")
    url = given or postgres.start()  # type: ignore[union-attr]
    try:
        async with Database(url) as db:
            await migrate(db)
        total = show(await demonstrate(url))
        planes_agree = await fleet.demonstrate(url, directory, console)
    finally:
        if postgres is not None:
            postgres.stop()
        shutil.rmtree(directory, ignore_errors=True)
    expected = directly()
    if total != expected:
        console.print(f"[bold red]the totals differ:[/] workflows {total}, file {expected}", highlight=False)
        return 1
    if not planes_agree:
        return 1
    console.print("[bold green]totals and answers agree with a direct computation over the file[/]")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
