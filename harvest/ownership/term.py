"""Lease arithmetic: pure."""

from __future__ import annotations

from dataclasses import dataclass

TTL = 10.0
"""Seconds that a lease lasts without renewal."""
RENEW_EVERY = 1.0
MARGIN = 2.0
"""Seconds before the end of the lease at which its holder stops trusting it."""


@dataclass(slots=True)
class Term:
    """`trusted_until` is on the holder's monotonic clock, counted from *before* the renewal was sent."""

    ttl: float = TTL
    trusted_until: float = 0.0

    def renewed(self, sent_at: float) -> None:
        self.trusted_until = sent_at + self.ttl - MARGIN

    def trusts(self, now: float) -> bool:
        return now < self.trusted_until


def is_dead(state: str, lapsed: bool, lock_free: bool) -> bool:
    """Whether another worker's partitions may be taken.

    A fenced worker has lost already; a lapsed lease is over; a free session lock means that the process or
    its connection is gone.
    """
    return state == "fenced" or lapsed or lock_free
