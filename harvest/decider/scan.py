"""Looks into the hub once per interval, one interval ahead: what no wake told is found here (F-5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from harvest.clock import MICRO
from harvest.decider.decider import Decider
from harvest.hub import workflow_tasks
from harvest.ownership.share import Share
from harvest.service import Periodic
from harvest.wakes.topics import DECIDE

SCAN_SIZE = 5_000


class Scanner(Periodic):
    """`nudge` scans at once: after an acquisition, or after wakes may have been lost.

    With `names` it also looks when the next activity of `queue` is due: `on_activities(seconds)`, None when none waits.
    """

    doing = "scan for due runs"

    def __init__(self, decider: Decider, share: Share, *, interval: float) -> None:
        super().__init__(interval)
        self.decider, self.share = decider, share
        self.queue, self.names = "", list[str]()
        self.on_activities: Callable[[float | None], None] = lambda _: None
        self._to_recover: set[int] = set()
        self.scans = 0

    def acquired(self, partitions: list[int]) -> None:
        """New partitions: load what their last owner held in memory, then look at all that is due."""
        self._to_recover.update(partitions)
        self.nudge()

    async def _recover(self) -> None:
        decider, partitions = self.decider, self._to_recover
        if not partitions:
            return
        self._to_recover = set()
        try:
            rows = await workflow_tasks.running(decider.db, decider.pool, list(partitions))
        except Exception:
            self._to_recover |= partitions
            raise
        for row in rows:
            decider.wake(row["execution_id"], row["partition"])

    async def _open(self) -> None:
        self._leave = self.decider.router.subscribe(DECIDE, self._woken)

    async def _close(self) -> None:
        leave = getattr(self, "_leave", None)
        if leave is not None:
            leave()

    def _woken(self, payload: Any) -> None:
        pool, runs = payload
        if pool == self.decider.pool:
            for execution_id, partition in runs:
                self.decider.wake(UUID(execution_id), partition)

    async def _stamp(self) -> None:
        """O-2: tasks without a partition get theirs, and their owners are woken."""
        decider = self.decider
        for row in await workflow_tasks.stamp(decider.db, decider.pool):
            decider.notifier.decide(decider.pool, row["execution_id"], row["partition"])
            decider.wake(row["execution_id"], row["partition"])

    async def run_once(self) -> int:
        """One scan; returns how many rows it looked at."""
        decider = self.decider
        mine = list(self.share.epochs)
        if not mine:
            return 0
        await self._recover()
        rows = await workflow_tasks.scan(
            decider.db,
            decider.pool,
            mine,
            ahead=1.5 * self.interval,
            size=SCAN_SIZE,
            queue=self.queue,
            names=self.names,
        )
        if self.names:
            waits = [row["due_us"] for row in rows if row["kind"] == "activity"]
            self.on_activities(waits[0] / MICRO if waits else None)
        for row in rows:
            if row["kind"] == "due":
                decider.due(row["execution_id"], row["partition"], row["due_us"])
            elif row["kind"] == "mail":
                run = decider.runs.get(row["execution_id"])
                if run is None or not (run.busy or run.queued or run.loading):
                    decider.wake(row["execution_id"], row["partition"])
            elif row["kind"] == "unstamped":
                await self._stamp()
        decider.pump_soon()
        self.scans += 1
        return len(rows)
