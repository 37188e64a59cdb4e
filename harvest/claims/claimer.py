"""The claim loop of sticky mode (S-1 to S-8)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

from harvest.claims.claims import Claims
from harvest.decider.decider import Decider
from harvest.decisions.run import Claim
from harvest.hub import workflow_tasks
from harvest.hub.database import Row
from harvest.service import Periodic
from harvest.wakes.topics import DECIDE

log = logging.getLogger("harvest.claims")
CLAIM_SIZE = 200
LOOK_FOR_LOST_EVERY = 10.0


async def _nobody(_: list[UUID]) -> None: ...


class Claimer(Periodic):
    """Claims up to `slots` tasks of one pool at a time; `window` is the length of a pin in seconds, None without pins.

    Idle until `active` is set. `nudge` has it look at once. `on_strays(execution_ids)` takes care of mail of closed runs,
    `on_figures` gets the sticky figures of the pool once per interval, where it is set.
    """

    doing = "claim workflow tasks"

    def __init__(self, decider: Decider, claims: Claims, *, slots: int, window: float | None, interval: float) -> None:
        super().__init__(interval)
        self.decider, self.claims, self.slots, self.window = decider, claims, slots, window
        self.active = False
        self.on_strays: Callable[[list[UUID]], Awaitable[None]] = _nobody
        self.on_figures: Callable[[dict[str, int]], None] | None = None
        self.counts = {"sticky_hit_expected": 0, "cold_replay": 0, "forced_cold_replay": 0}
        self.claimed = self.rounds = 0
        self._full = self._unsure = False
        self._one_at_a_time = asyncio.Lock()
        self._orphans: dict[UUID, int] = {}
        self._sweep_at = self._reconcile_at = 0.0
        claims.on_done = self._freed

    def _freed(self) -> None:
        if self._full:
            self.nudge()

    async def start_claiming(self) -> None:
        """The hub is in sticky mode."""
        self.active = True
        await workflow_tasks.retry_failed(self.decider.db, self.decider.pool)
        self.nudge()

    def stop_claiming(self) -> None:
        self.active = False
        self.claims.held.clear()

    # --- the loop

    async def _open(self) -> None:
        self._leave: Callable[[], None] = self.decider.router.subscribe(DECIDE, self._woken)
        self.decider.notifier.on_poked.append(self.nudge)

    async def _close(self) -> None:
        leave = getattr(self, "_leave", None)
        if leave is not None:
            leave()
        if self.nudge in self.decider.notifier.on_poked:
            self.decider.notifier.on_poked.remove(self.nudge)

    def _woken(self, payload: Any) -> None:
        pool, runs = payload
        if pool != self.decider.pool or not self.active:
            return
        strangers = not runs
        for execution_id, partition in runs:
            found = UUID(execution_id)
            if found in self.claims.held:
                self.decider.wake(found, partition)
            else:
                strangers = True
        if strangers:
            self.nudge()

    async def turn(self) -> float:
        return await self.run_once() if self.active and not self.decider.holdings.distrusted() else self.interval

    async def run_once(self) -> float:
        """Claims what there is room for; returns seconds until it is worth looking again."""
        decider = self.decider
        self.rounds += 1
        decider.pump_soon()  # what was left while the lease was distrusted
        while self.active and not self.stopping.is_set():
            size = min(self.slots - len(self.claims.held), CLAIM_SIZE)
            self._full = size <= 0
            if size <= 0:
                break
            worker_id = self.claims.worker_id
            async with self._one_at_a_time:
                rows = await self._claim(worker_id, size)
            if worker_id != self.claims.worker_id or not self.active:
                break  # a new identity, or another mode: these claims are void
            for row in rows:
                self._take(row)
            if len(rows) < size:
                break
        await self._sweep()
        if self._full or self._nudged.is_set():
            return self.interval
        opens = await workflow_tasks.next_open(decider.db, decider.pool, self.claims.worker_id)
        return self.interval if opens is None else min(self.interval, opens if opens > 0 else 0.05)

    async def _claim(self, worker_id: UUID, size: int) -> Sequence[Row]:
        db = self.decider.db
        if self._unsure:  # the answer of a claim was lost: what it gave is not ours in memory
            await self._give_back(await self._strangers())
            self._unsure = False
        try:
            return await workflow_tasks.claim(db, pool=self.decider.pool, worker_id=worker_id, size=size)
        except BaseException:
            self._unsure = True
            raise

    def _take(self, row: Row) -> Claim:
        mode = row["sticky_replay_mode"]
        claim = Claim(
            row["execution_id"],
            row["partition"],
            row["claim"],
            row["wakes"],
            row["decision"],
            row["scheduled"],
            mode,
            self.window,
            row["sticky_worker_id"],
            row["sticky_until"],
        )
        self.counts[mode] += 1
        if mode != "forced_cold_replay":
            self.decider.minute.add("hit_expected" if mode == "sticky_hit_expected" else "cold_replay")
        self.claimed += 1
        self.claims.held[claim.execution_id] = claim
        self.decider.claimed(claim)
        return claim

    async def take_one(self, execution_id: UUID) -> bool:
        """For a query: True when the run is claimed by this worker (now), False when another one decides it."""
        if execution_id in self.claims.held:
            return True
        if not self.active:
            return False
        async with self._one_at_a_time:
            row = await workflow_tasks.claim_one(self.decider.db, worker_id=self.claims.worker_id, execution_id=execution_id)
        if row is None:
            return execution_id in self.claims.held
        self._take(row)
        return True

    async def _sweep(self) -> None:
        """Once per interval: runs whose wake was lost; now and then claims whose answer was lost."""
        loop = asyncio.get_running_loop()
        now, decider = loop.time(), self.decider
        if now < self._sweep_at:
            return
        self._sweep_at = now + self.interval
        parked, closed = await workflow_tasks.overlooked(decider.db, decider.pool)
        for execution_id, partition in parked:
            decider.notifier.decide(decider.pool, execution_id, partition)
        if closed:
            await self.on_strays(closed)
        if self.on_figures is not None:
            self.on_figures(await workflow_tasks.sticky_figures(decider.db, decider.pool))
        if now < self._reconcile_at:
            return
        self._reconcile_at = now + LOOK_FOR_LOST_EVERY
        lost = await self._strangers()
        again = {execution_id: number for execution_id, number in lost.items() if self._orphans.get(execution_id) == number}
        self._orphans = lost
        await self._give_back(again)

    async def _strangers(self) -> dict[UUID, int]:
        """Claims that the hub thinks are ours and that are not held here."""
        mine = await workflow_tasks.claims_of(self.decider.db, self.claims.worker_id, self.decider.pool)
        held = self.claims.held
        return {e: number for e, number in mine.items() if e not in held or held[e].number != number}

    async def _give_back(self, claims: dict[UUID, int]) -> None:
        if claims:
            log.warning("%d tasks were claimed but are not held; they go back", len(claims))
            await workflow_tasks.unclaim(self.decider.db, self.claims.worker_id, claims)
            self.nudge()
