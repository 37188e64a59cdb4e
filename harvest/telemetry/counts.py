"""Plain numbers that the hot path adds to."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping


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
