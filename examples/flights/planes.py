"""An entity per aeroplane: every departure, arrival and cancellation of the month is an operation of its plane."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator

from pydantic import BaseModel

from examples.flights.flows import DATA, LATE
from harvest import ApplicationError, entity


class Leg(BaseModel):
    day: int
    dest: str
    late: int = 0
    """Minutes of delay at departure, negative for an early one."""
    arrived: bool = False


class PlaneState(BaseModel):
    carrier: str = ""
    legs: list[Leg] = []
    flights: int = 0
    cancelled: int = 0
    taken_in: int = 0
    """Cancelled flights whose passengers went along."""
    late: int = 0
    minutes: int = 0
    miles: int = 0
    in_air: bool = False


class NotOnTheGround(ApplicationError):
    """A plane that is in the air cannot depart."""


@entity.defn(indexes=["carrier"])
class Plane:
    state: PlaneState

    @entity.operation(raises=(NotOnTheGround,))
    def depart(self, carrier: str, day: int, dest: str, delay: int) -> int:
        """The number of flights so far."""
        state = self.state
        if state.in_air:
            raise NotOnTheGround(f"{entity.info().key} has not arrived from its last flight")
        state.carrier, state.in_air = carrier, True
        state.legs.append(Leg(day=day, dest=dest, late=delay))
        state.flights += 1
        state.minutes += max(0, delay)
        state.late += delay >= LATE
        return state.flights

    @entity.operation
    def arrive(self, miles: int) -> int:
        """The miles so far."""
        self.state.legs[-1].arrived = True
        self.state.in_air = False
        self.state.miles += miles
        return self.state.miles

    @entity.operation
    def cancel(self, carrier: str) -> None:
        self.state.carrier = carrier
        self.state.cancelled += 1

    @entity.operation
    def rebook(self, flights: int) -> None:
        """Passengers of cancelled flights go along with the next one of this plane."""
        self.state.taken_in += flights


class Movement(BaseModel):
    """One row of the file as its plane sees it. `plane` is the tail number, or the carrier where there is none."""

    plane: str
    carrier: str
    day: int
    dest: str
    scheduled: int
    delay: int | None
    miles: int
    arrived: bool


def movements() -> Iterator[Movement]:
    """All flights of the month, in order."""
    with gzip.open(DATA, "rt") as file:
        for row in csv.DictReader(file):
            yield Movement(
                plane=row["tailnum"] if row["tailnum"] != "NA" else f"{row['carrier']} without tail number",
                carrier=row["carrier"],
                day=int(row["time_hour"][8:10]),
                dest=row["dest"],
                scheduled=int(row["sched_dep_time"]),
                delay=None if row["dep_delay"] == "NA" else int(row["dep_delay"]),
                miles=int(row["distance"]),
                arrived=row["arr_time"] != "NA",
            )


def rebooked(flights: list[Movement]) -> dict[int, int]:
    """How many cancelled flights the flight of each position takes in: the next one of the day to the same place that left."""
    later: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for position, flight in enumerate(flights):
        if flight.delay is not None:
            later.setdefault((flight.day, flight.dest), []).append((flight.scheduled, position))
    taken: dict[int, int] = {}
    for flight in flights:
        if flight.delay is None:
            after = [at for at in later.get((flight.day, flight.dest), []) if at[0] > flight.scheduled]
            if after:
                position = min(after)[1]
                taken[position] = taken.get(position, 0) + 1
    return taken
