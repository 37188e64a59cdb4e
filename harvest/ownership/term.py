"""Lease arithmetic: pure."""

from __future__ import annotations

from dataclasses import dataclass

TTL = 10.0
"""Seconds that a lease lasts without renewal."""
RENEW_EVERY = 1.0
MARGIN = 0.2
"""The part of a lease, at its end, in which its holder trusts it no longer."""
SCANNING = 3.0
"""Seconds since its last scan within which a worker counts as a live owner (O-3)."""


@dataclass(slots=True)
class Term:
    """`trusted_until` is on the holder's monotonic clock, counted from *before* the renewal was sent."""

    ttl: float = TTL
    trusted_until: float = 0.0

    def renewed(self, sent_at: float) -> None:
        self.trusted_until = sent_at + self.ttl * (1 - MARGIN)

    def trusts(self, now: float) -> bool:
        return now < self.trusted_until


def is_dead(state: str, lapsed: bool, locked: bool) -> bool:
    """Whether another worker may be fenced and its partitions taken.

    A fenced worker has lost already; a lapsed lease is over; a free session lock means that the process or
    its connection is gone.
    """
    return state == "fenced" or lapsed or not locked
