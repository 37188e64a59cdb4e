"""Keeps this worker's lease, and its hold on partitions."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import Callable
from uuid import UUID

from harvest.clock import Clock
from harvest.hub import activity_tasks, partitions, workers, workflow_tasks
from harvest.hub.database import Database, Session
from harvest.ids import new_id
from harvest.ownership.term import RENEW_EVERY, Term, is_dead
from harvest.service import Periodic

log = logging.getLogger("harvest.ownership")


class Keeper(Periodic):
    """Registers, renews, acquires what is free or was held by the dead, and gives all back at the end.

    `on_acquired(partitions)` is called after each acquisition. `owns_nothing` keeps workers without
    workflow types out of ownership (O-4).
    """

    doing = "renew the lease"

    def __init__(
        self,
        db: Database,
        pool: str,
        *,
        build_id: str,
        definitions: dict[str, list[str]],
        lanes: int,
        session: Callable[[], Session | None],
        wake_queue: Callable[[str], None],
        clock: Clock,
        term: Term,
        owns_nothing: bool,
        interval: float = RENEW_EVERY,
    ) -> None:
        super().__init__(interval)
        self.db, self.pool, self.build_id, self.definitions, self.lanes = db, pool, build_id, definitions, lanes
        self.session, self.wake_queue, self.clock, self.term = session, wake_queue, clock, term
        self.owns_nothing = owns_nothing
        self.worker_id: UUID = new_id()
        self.lock_key = 0
        self._epochs: dict[int, int] = {}
        self.on_acquired: list[Callable[[list[int]], None]] = []
        self.on_registered: list[Callable[[UUID], None]] = []
        self._registering = asyncio.Lock()

    @property
    def epochs(self) -> dict[int, int]:
        return self._epochs

    def distrusted(self) -> bool:
        """True when the lease may have ended: nothing is decided until it is renewed."""
        return not self.term.trusts(self.clock.monotonic())

    async def _open(self) -> None:
        await self.register()
        if not self.owns_nothing:
            await workflow_tasks.retry_failed(self.db, self.pool)
        await self.run_once()

    async def register(self) -> None:
        """A new identity: at the start, and after a fence."""
        async with self._registering:
            await self._register()

    async def _register(self) -> None:
        self.worker_id = new_id()
        self.lock_key = self.worker_id.int & 0x7FFF_FFFF_FFFF_FFFF
        self._epochs = {}
        sent_at = self.clock.monotonic()
        await self._lock()
        await partitions.ensure(self.db, self.pool)
        await workers.register(
            self.db,
            worker_id=self.worker_id,
            pool=self.pool,
            build_id=self.build_id,
            lock_key=self.lock_key,
            ttl=self.term.ttl,
            host=socket.gethostname(),
            pid=os.getpid(),
            definitions=json.dumps(self.definitions),
            connections=self.lanes,
        )
        self.term.renewed(sent_at)
        for callback in self.on_registered:
            callback(self.worker_id)

    async def _lock(self) -> None:
        session = self.session()
        if session is not None and not await workers.try_lock(session, self.lock_key):
            log.error("the session lock of this worker is taken; peers will rely on its lease alone")

    async def reconnected(self, session: Session) -> None:
        """The LISTEN connection is new: the old lock went with the old one."""
        if self.lock_key:
            await workers.try_lock(session, self.lock_key)

    async def run_once(self) -> list[int]:
        """Renews, fences the dead, acquires; returns what was acquired.

        Bounded by half a lease: a connection that went silent must not cost the lease.
        """
        async with asyncio.timeout(self.term.ttl / 2), self._registering:
            return await self._once()

    async def _once(self) -> list[int]:
        sent_at = self.clock.monotonic()
        now_us = await workers.renew(self.db, self.worker_id, ttl=self.term.ttl, figures=None)
        if now_us is None:
            log.warning("worker %s was fenced while it was away; it starts over", self.worker_id)
            await self._register()
            return []
        self.term.renewed(sent_at)
        dead = await self._dead()
        if dead:
            await workers.fence(self.db, dead)
            for queue in set(await activity_tasks.release(self.db, dead)):
                self.wake_queue(queue)
        new: list[int] = []
        if not self.owns_nothing:
            held = await partitions.acquire(self.db, pool=self.pool, worker_id=self.worker_id)
            new = [partition for partition, epoch in held.items() if self._epochs.get(partition) != epoch]
            self._epochs = held
        if dead:
            await workers.forget(self.db, dead)
        if new:
            log.info("acquired %d partitions of pool %r", len(new), self.pool)
            for callback in self.on_acquired:
                callback(new)
        return new

    async def _dead(self) -> list[UUID]:
        return [
            row["worker_id"]
            for row in await workers.others(self.db, self.worker_id, self.pool)
            if is_dead(row["state"], row["lapsed"], not row["locked"])
        ]

    async def fenced(self) -> None:
        """This tenure is over. What was held is dropped by whoever held it; a new tenure begins."""
        lost = self.worker_id
        async with self._registering:
            if self.worker_id == lost and self._epochs and not self.stopping.is_set():
                await self._register()

    async def _close(self) -> None:
        """Releases everything at once, so that a peer takes over without waiting for a lease."""
        self._epochs = {}
        try:
            await partitions.release(self.db, self.worker_id)
            for queue in set(await activity_tasks.release(self.db, [self.worker_id])):
                self.wake_queue(queue)
            await workers.forget(self.db, [self.worker_id])
        except Exception as exc:
            log.warning("could not release ownership, peers will wait for the lease: %s", exc)
