"""The planes' part of the demonstration: feed the month to the entities, then ask in SQL and check against the file."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import harvest
from examples.flights.planes import Movement, Plane, movements, rebooked
from harvest import Worker, WorkerConfig

QUEUE = "planes"
AT_ONCE = 512


async def fly(client: harvest.Client, key: str, flights: list[tuple[Movement, int]], done: Counter[str]) -> None:
    """One plane's month, in order. A flight that never arrived (two did not) is put down as it is in the file."""
    plane = client.entity(Plane, key, queue=QUEUE)
    for flight, taken_in in flights:
        if flight.delay is None:
            await plane.call(Plane.cancel, flight.carrier)
            done["operations"] += 1
        else:
            if taken_in:
                await plane.call(Plane.rebook, taken_in)
            await plane.call(Plane.depart, flight.carrier, flight.day, flight.dest, flight.delay)
            await plane.call(Plane.arrive, flight.miles if flight.arrived else 0)
            done["operations"] += 2 + bool(taken_in)
        done["flights"] += 1


async def feed(client: harvest.Client, flights: list[Movement], console: Console) -> tuple[float, int]:
    """Seconds and operations that it took."""
    taken, by_plane = rebooked(flights), dict[str, list[tuple[Movement, int]]]()
    for position, flight in enumerate(flights):
        by_plane.setdefault(flight.plane, []).append((flight, taken.get(position, 0)))
    done: Counter[str] = Counter()
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(key: str) -> None:
        async with gate:
            await fly(client, key, by_plane[key], done)

    columns = (TextColumn("[bold]planes "), BarColumn(40), TextColumn("{task.completed:,} of {task.total:,} flights"))
    began = time.perf_counter()
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        bar = progress.add_task("", total=len(flights))
        work = asyncio.gather(*(one(key) for key in by_plane))
        while not work.done():
            progress.update(bar, completed=done["flights"])
            await asyncio.wait({work}, timeout=0.1)
        await work
        progress.update(bar, completed=done["flights"])
    return time.perf_counter() - began, done["operations"]


async def demonstrate(url: str, directory: Path, console: Console) -> bool:
    """True when every answer is that of the file."""
    flights = list(movements())
    config = WorkerConfig(owner_disk_cache=directory / "cache", owner_entity_sql=True, workflow_cache_size=5_000)
    async with harvest.connect(url) as client, Worker(client, queue=QUEUE, definitions=[Plane], config=config):
        seconds, operations = await feed(client, flights, console)
        console.print(
            f"{len(flights):,} flights through {len({f.plane for f in flights}):,} planes: {operations:,} operations in"
            f" {seconds:.1f} s ({operations / seconds:,.0f}/s)",
            highlight=False,
        )
        return await ask_one(client, flights, console) and await ask_all(client, flights, console)


async def ask_one(client: harvest.Client, flights: list[Movement], console: Console) -> bool:
    busiest = Counter(f.plane for f in flights if f.delay is not None and " " not in f.plane).most_common(1)[0][0]
    question = (
        "SELECT value ->> '$.dest' AS dest, count(*) AS flights, max(value ->> '$.late') AS worst"
        " FROM entity, json_each(state, '$.legs') GROUP BY dest ORDER BY flights DESC, dest LIMIT 5"
    )
    rows = await client.entity(Plane, busiest, queue=QUEUE).sql(question)
    show(console, f"{busiest}, the busiest plane ({rows.source})", rows.columns, rows.rows)
    delays: dict[str, list[int]] = {}
    for flight in flights:
        if flight.plane == busiest and flight.delay is not None:
            delays.setdefault(flight.dest, []).append(flight.delay)
    wanted = sorted(((d, len(each), max(each)) for d, each in delays.items()), key=lambda row: (-row[1], row[0]))[:5]
    return agrees(console, rows.rows, wanted)


async def ask_all(client: harvest.Client, flights: list[Movement], console: Console) -> bool:
    question = (
        "SELECT state ->> '$.carrier' AS carrier, count(*) AS planes, sum(state ->> '$.flights') AS flights,"
        " sum(state ->> '$.cancelled') AS cancelled, sum(state ->> '$.taken_in') AS taken_in,"
        " sum(state ->> '$.minutes') AS delay, sum(state ->> '$.miles') AS miles"
        " FROM entity GROUP BY carrier ORDER BY flights DESC, carrier"
    )
    began = time.perf_counter()
    rows = await client.query_entities_sql(Plane, question)
    spent = time.perf_counter() - began
    show(console, f"all planes by carrier ({spent * 1000:.0f} ms)", rows.columns, rows.rows)
    carrier: dict[str, str] = {}
    totals: dict[str, list[int]] = {}
    for flight in flights:
        carrier[flight.plane] = flight.carrier  # of the last flight: a few planes changed hands
    taken = rebooked(flights)
    for position, flight in enumerate(flights):
        total = totals.setdefault(carrier[flight.plane], [0, 0, 0, 0, 0])
        if flight.delay is None:
            total[1] += 1
        else:
            miles = flight.miles if flight.arrived else 0
            for n, value in enumerate((1, 0, taken.get(position, 0), max(0, flight.delay), miles)):
                total[n] += value
    planes = Counter(carrier.values())
    wanted = sorted(((name, planes[name], *total) for name, total in totals.items()), key=lambda row: (-row[2], row[0]))
    return rows.complete and agrees(console, rows.rows, wanted)


def show(console: Console, title: str, columns: list[str], rows: list[tuple[object, ...]]) -> None:
    table = Table(title=title, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in row))
    console.print(table)


def agrees(console: Console, found: list[tuple[object, ...]], wanted: list[tuple[object, ...]]) -> bool:
    if found != wanted:
        console.print(f"[bold red]the answers differ:[/] entities {found}, file {wanted}", highlight=False)
    return found == wanted
