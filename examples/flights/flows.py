"""A workflow per day fans out over its flights; a month workflow runs the days and totals them."""

from __future__ import annotations

import asyncio
import csv
import gzip
from functools import cache
from pathlib import Path

from pydantic import BaseModel

from harvest import RetryPolicy, activity, workflow

DATA = Path(__file__).parent / "data" / "flights-2013-01.csv.gz"
LATE = 15
"""Minutes from which a departure counts as late, as the US Bureau of Transportation Statistics counts."""


class Flight(BaseModel):
    carrier: str
    number: int
    origin: str
    dest: str
    scheduled: int
    """Departure as HHMM, local time."""
    dep_delay: int | None
    """Minutes; None for a flight that was cancelled."""
    tail: str | None

    @property
    def cancelled(self) -> bool:
        return self.dep_delay is None


class Outcome(BaseModel):
    """One flight's share of the day's report."""

    cancelled: bool = False
    rebooked: bool = False
    minutes: int = 0
    late: bool = False


class Report(BaseModel):
    flights: int = 0
    cancelled: int = 0
    rebooked: int = 0
    late: int = 0
    minutes: int = 0
    """Minutes of delay over all departures that were not early."""

    def add(self, outcome: Outcome) -> None:
        self.flights += 1
        self.cancelled += outcome.cancelled
        self.rebooked += outcome.rebooked
        self.late += outcome.late
        self.minutes += outcome.minutes

    def plus(self, other: Report) -> Report:
        return Report(**{name: getattr(self, name) + getattr(other, name) for name in Report.model_fields})


class DayReport(Report):
    day: int
    approved_by: str = ""


@cache
def lines_by_day() -> dict[int, list[str]]:
    """The file's rows by day of January; rows are kept as they are."""
    with gzip.open(DATA, "rt") as file:
        next(file)
        days: dict[int, list[str]] = {}
        for line in file:
            days.setdefault(int(line[8:10]), []).append(line.rstrip("\n"))
    return days


def flight_of(line: str) -> Flight:
    row = next(csv.reader([line]))
    delay, tail = row[8], row[3]
    return Flight(
        carrier=row[1],
        number=int(row[2]),
        origin=row[4],
        dest=row[5],
        scheduled=int(row[6]),
        dep_delay=None if delay == "NA" else int(delay),
        tail=None if tail == "NA" else tail,
    )


# --- activities -----------------------------------------------------------------------------------


@activity.defn
async def load_day(day: int) -> list[str]:
    """The day's rows."""
    return (await asyncio.to_thread(lines_by_day))[day]


@activity.defn(local=True)
async def parse(line: str) -> Flight:
    return flight_of(line)


@activity.defn(local=True)
async def measure(flight: Flight) -> Outcome:
    minutes = flight.dep_delay or 0
    return Outcome(minutes=max(0, minutes), late=minutes >= LATE)


@activity.defn(retry=RetryPolicy(max_attempts=5))
def find_seat(day: int, flight: Flight) -> str | None:
    """The next flight of the day to the same place that left, or None."""
    later = [
        f
        for f in map(flight_of, lines_by_day()[day])
        if f.dest == flight.dest and not f.cancelled and f.scheduled > flight.scheduled
    ]
    best = min(later, key=lambda f: (f.scheduled, f.carrier, f.number), default=None)
    return None if best is None else f"{best.carrier}{best.number}"


# --- workflows ------------------------------------------------------------------------------------


@workflow.defn
async def rebook(day: int, flight: Flight) -> bool:
    """Finds the passengers of a cancelled flight another one; False when there is none that day."""
    return await workflow.execute_activity(find_seat, day, flight) is not None


@workflow.defn
class Day:
    """Works through the flights of one day, then waits for somebody to approve the report."""

    def __init__(self) -> None:
        self.total = 0
        self.report = DayReport(day=0)
        self.approved_by: str | None = None

    @workflow.run
    async def run(self, day: int) -> DayReport:
        self.report = DayReport(day=day)
        lines = await load_day(day)
        self.total = len(lines)
        await asyncio.gather(*(self.handle(day, line) for line in lines))
        await workflow.wait_until(lambda: self.approved_by is not None)
        self.report.approved_by = self.approved_by or ""
        return self.report

    async def handle(self, day: int, line: str) -> None:
        flight = await parse(line)
        if flight.cancelled:
            outcome = Outcome(cancelled=True, rebooked=await rebook(day, flight))
        else:
            outcome = await measure(flight)
        self.report.add(outcome)

    @workflow.signal
    def approve(self, by: str) -> None:
        self.approved_by = by

    @workflow.query
    def progress(self) -> tuple[int, int]:
        """Flights done, and flights of the day (0 before they are loaded)."""
        return self.report.flights, self.total


@workflow.defn
class Month:
    """Runs the days as children and totals them."""

    def __init__(self) -> None:
        self.days: list[DayReport] = []

    @workflow.run
    async def run(self, days: list[int]) -> list[DayReport]:
        async with asyncio.TaskGroup() as group:
            for day in days:
                group.create_task(self.one(day))
        return sorted(self.days, key=lambda report: report.day)

    async def one(self, day: int) -> None:
        self.days.append(await workflow.execute_child(Day, day, id=day_id(workflow.info().workflow_id, day)))

    @workflow.query
    def done(self) -> int:
        return len(self.days)


def day_id(month: str, day: int) -> str:
    return f"{month}/day-{day:02d}"
