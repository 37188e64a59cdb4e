"""What a worker runs for one pool."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from harvest.claims.claimer import Claimer
from harvest.claims.claims import Claims
from harvest.config import seconds
from harvest.decider.decider import Decider
from harvest.decider.options import DeciderOptions
from harvest.decider.scan import Scanner
from harvest.decider.shelf import Shelf

if TYPE_CHECKING:
    from harvest.node.worker import Worker


class Unit:
    """One decider, and the two ways of feeding it. The mode says which one is on."""

    def __init__(self, worker: Worker, pool: str, number: int) -> None:
        config, site, keeper = worker.config, worker.client.site, worker.keeper
        window = seconds(config.sticky_timeout)
        interval = seconds(config.scan_interval)
        self.pool, self.keeper, self.share = pool, keeper, keeper.shares[pool]
        self.claims = Claims(lambda: keeper.worker_id, keeper.distrusted, keeper.fenced)
        self.decider = Decider(
            worker.client.db,
            worker.registry,
            pool,
            holdings=self.share,
            hands=worker.activities,
            router=site.router,
            notifier=site.notifier,
            clock=worker.clock,
            options=DeciderOptions(
                lanes=config.commit_lanes,
                first_lane=number * config.commit_lanes,
                batch=config.max_batch,
                resident_entries=keeper.me.cache_capacity,
                resident_bytes=config.workflow_cache_bytes,
                attempts=config.max_workflow_attempts,
            ),
            driving=keeper.driving,
        )
        self.shelf: Shelf | None = None
        if worker.cache is not None:
            self.shelf = self.decider.shelf = Shelf(
                self.decider, self.share, worker.cache, min_events=config.owner_disk_cache_min_events
            )
        self.scanner = Scanner(self.decider, self.share, interval=interval)
        slots = config.max_workflow_slots if worker.registry.workflows else 0
        self.claimer = Claimer(
            self.decider, self.claims, slots=slots, window=window if config.keeps_residents else None, interval=interval
        )
        self.decider.on_timer = self.claimer.nudge
        self.claimer.on_strays = site.forward_strays
        self.share.busy = self.decider.busy_partitions
        self.share.on_leaving = self.decider.leave
        self.share.on_acquired = self._acquired

    def _acquired(self, partitions: list[int]) -> None:
        self.decider.leave(partitions)  # whatever is left of an earlier tenure is out of date
        self.scanner.acquired(partitions)

    async def enter(self, mode: str, worker_id: UUID) -> None:
        """Takes work in this mode from now on; nothing that was taken in the other way is kept."""
        self.claimer.stop_claiming()
        if mode == "sticky":
            self.decider.take_up(self.claims, worker_id)
            if self.claimer.slots and not self.keeper.draining:
                await self.claimer.start_claiming()
        else:
            self.decider.take_up(self.share, worker_id)
