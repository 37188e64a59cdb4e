"""Time as workers see it: microseconds since the epoch, from a source that tests can own."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

MICRO = 1_000_000


class Clock(Protocol):
    """`now_us()` is wall time; `monotonic()` is seconds on a clock that never jumps (leases use it)."""

    def now_us(self) -> int: ...

    def monotonic(self) -> float: ...


class SystemClock:
    """The machine's clock."""

    def now_us(self) -> int:
        return time.time_ns() // 1_000

    def monotonic(self) -> float:
        return time.monotonic()


class HubClock:
    """The hub's time on this machine's monotonic clock, so that a wall clock that is wrong or jumps fires no timer
    early or late. `observe` takes each answer of the hub that carries its time."""

    def __init__(self, base: Clock) -> None:
        self._base = base
        self._offset = base.now_us() - round(base.monotonic() * MICRO)
        self._trip = float("inf")

    def now_us(self) -> int:
        return int(self._base.monotonic() * MICRO) + self._offset

    def monotonic(self) -> float:
        return self._base.monotonic()

    def observe(self, hub_us: int, sent_at: float, received_at: float) -> None:
        """The hub said `hub_us` between two moments of the monotonic clock. Slow answers tell less, and are left out."""
        trip = received_at - sent_at
        if trip <= 2 * self._trip + 0.001:
            self._offset = hub_us - round((sent_at + received_at) / 2 * MICRO)
        self._trip = min(trip, self._trip * 1.1)


def to_us(span: timedelta | float | int) -> int:
    """Microseconds of a timedelta, or of a number of seconds."""
    if isinstance(span, timedelta):
        return (span.days * 86_400 + span.seconds) * MICRO + span.microseconds
    return round(span * MICRO)


def at_us(us: int) -> datetime:
    return datetime.fromtimestamp(us // MICRO, UTC).replace(microsecond=us % MICRO)


def us_of(at: datetime) -> int:
    return int(at.timestamp()) * MICRO + at.microsecond
