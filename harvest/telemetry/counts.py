"""Plain numbers that the hot path adds to."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence


def rate(counts: Mapping[str, int], what: str) -> float:
    """The share of `what` (hit or miss) among decisions that could have found their run in memory."""
    both = counts.get("hit", 0) + counts.get("miss", 0)
    return counts.get(what, 0) / both if both else 0.0


class LastMinute:
    """How often things happened within the last 60 seconds, to the second."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._seconds: deque[tuple[int, Counter[str]]] = deque()

    def add(self, name: str, count: int = 1) -> None:
        now = int(self._monotonic())
        if not self._seconds or self._seconds[-1][0] != now:
            self._seconds.append((now, Counter()))
            self._forget(now)
        self._seconds[-1][1][name] += count

    def _forget(self, now: int) -> None:
        while self._seconds and self._seconds[0][0] <= now - 60:
            self._seconds.popleft()

    def totals(self) -> Counter[str]:
        """Safe to call from another thread: it reads a copy."""
        oldest = int(self._monotonic()) - 60
        total: Counter[str] = Counter()
        for second, counts in list(self._seconds):
            if second > oldest:
                total.update(dict(counts))
        return total


BOUNDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Upper ends of the classes of a `Spread`, in seconds; the last class has none."""


class Spread:
    """How long things took: counts by class. Adding costs a bisection, and what two of them counted can be summed."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1


def quantile(counts: Sequence[int], q: float) -> float | None:
    """Seconds below which the part `q` lies, interpolated within its class; None where nothing was counted."""
    total = sum(counts)
    if not total:
        return None
    wanted, below, low = q * total, 0.0, 0.0
    for n, high in zip(counts, (*BOUNDS, BOUNDS[-1]), strict=True):
        if n and below + n >= wanted:
            return low + (high - low) * (wanted - below) / n
        below, low = below + n, high
    return BOUNDS[-1]
