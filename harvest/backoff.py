"""How long to wait before trying again: pure arithmetic, used by loops and by retry policies."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """`initial * factor ** (n - 1)` seconds before the n-th retry, at most `cap`, spread by ±`jitter`."""

    initial: float = 0.1
    factor: float = 2.0
    cap: float = 10.0
    jitter: float = 0.1

    def delay(self, retry: int, *, roll: float | None = None) -> float:
        """Seconds before retry number `retry` (from 1). `roll` in 0..1 replaces the dice."""
        exponent = min(retry - 1, 50)  # (a million to the fiftieth is still a float)
        base = min(self.cap, self.initial * self.factor**exponent)
        roll = random.random() if roll is None else roll
        return base * (1 + self.jitter * (2 * roll - 1))
