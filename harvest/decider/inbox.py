"""Runs that have something to do, in claim order (S-6): priority, then due time, new starts as if due 30 s later."""

from __future__ import annotations

import heapq

from harvest.clock import MICRO
from harvest.decisions.run import Run

NEW_START_HANDICAP_US = 30 * MICRO


class Inbox:
    """One entry per run."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, Run]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, run: Run, now_us: int) -> bool:
        """False when it is in already, or has a decision in flight (it is put again after the commit)."""
        if run.queued or run.busy:
            return False
        run.queued = True
        self._count += 1
        due = now_us if run.decision or not run.known else now_us + NEW_START_HANDICAP_US
        heapq.heappush(self._heap, (run.priority, due, self._count, run))
        return True

    def take(self) -> Run | None:
        if not self._heap:
            return None
        run = heapq.heappop(self._heap)[3]
        run.queued = False
        return run

    def clear(self) -> None:
        for item in self._heap:
            item[3].queued = False
        self._heap.clear()
