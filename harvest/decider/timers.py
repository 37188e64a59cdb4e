"""Wakes runs at the time of their earliest timer, to the millisecond, resident or not."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from uuid import UUID

from harvest.clock import MICRO, Clock


class Timers:
    """One due time per run: `arm` sets it, `forget` takes it away; `fire(execution_id, partition)` is called when it
    has come. A wake for nothing is harmless."""

    def __init__(self, clock: Clock, fire: Callable[[UUID, int], None]) -> None:
        self.clock, self.fire = clock, fire
        self._due: dict[UUID, int] = {}
        self._heap: list[tuple[int, UUID, int]] = []  # entries whose time is not the run's in `_due` are stale
        self._handle: asyncio.TimerHandle | None = None
        self._handle_us = 0
        self.loop: asyncio.AbstractEventLoop | None = None

    def __len__(self) -> int:
        return len(self._heap)

    def arm(self, due_us: int, execution_id: UUID, partition: int) -> None:
        if self._due.get(execution_id) == due_us:
            return
        self._due[execution_id] = due_us
        heapq.heappush(self._heap, (due_us, execution_id, partition))
        if len(self._heap) > 2 * len(self._due) + 64:
            self._heap = [item for item in self._heap if self._due.get(item[1]) == item[0]]
            heapq.heapify(self._heap)
        if self._handle is None or due_us < self._handle_us:
            self._schedule()

    def hint(self, due_us: int, execution_id: UUID, partition: int) -> None:
        """What a scan read is older than what the run armed itself: it only ever brings a wake forward."""
        armed = self._due.get(execution_id)
        if armed is None or due_us < armed:
            self.arm(due_us, execution_id, partition)

    def forget(self, execution_id: UUID) -> None:
        self._due.pop(execution_id, None)

    def _schedule(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._heap:
            self._handle_us = self._heap[0][0]
            delay = max(0.0, (self._handle_us - self.clock.now_us()) / MICRO)
            self._handle = (self.loop or asyncio.get_running_loop()).call_later(min(delay, 60.0), self.fire_due)

    def fire_due(self) -> None:
        """Fires what is due now; also called when a test's clock moved."""
        now = self.clock.now_us()
        while self._heap and self._heap[0][0] <= now:
            due_us, execution_id, partition = heapq.heappop(self._heap)
            if self._due.get(execution_id) == due_us:
                del self._due[execution_id]
                self.fire(execution_id, partition)
        self._schedule()

    def clear(self) -> None:
        self._due.clear()
        self._heap.clear()
        self._schedule()
