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


def to_us(span: timedelta | float | int) -> int:
    """Microseconds of a timedelta, or of a number of seconds."""
    if isinstance(span, timedelta):
        return (span.days * 86_400 + span.seconds) * MICRO + span.microseconds
    return round(span * MICRO)


def at_us(us: int) -> datetime:
    return datetime.fromtimestamp(us // MICRO, UTC).replace(microsecond=us % MICRO)


def us_of(at: datetime) -> int:
    return int(at.timestamp()) * MICRO + at.microsecond
