"""Looks around once per interval: fences the dead, keeps this worker's share, and follows the switch."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from harvest.clock import Clock, HubClock
from harvest.hub import activity_tasks, partitions, workers, workflow_tasks
from harvest.hub.database import Database
from harvest.hub.partitions import Look
from harvest.ids import new_id
from harvest.ownership.assignment import plan, refusal
from harvest.ownership.lease import Lease
from harvest.ownership.share import Share
from harvest.ownership.term import RENEW_EVERY, SCANNING, Term, is_dead
from harvest.ownership.watchdog import Driving
from harvest.service import Periodic
from harvest.wakes.notifier import Notifier
from harvest.wakes.router import Router
from harvest.wakes.topics import OWNERS, SWITCH

log = logging.getLogger("harvest.ownership")
SECOND_PHASE = 0.1
"""Seconds between the two phases of a release: decisions in flight have landed by then, or are waited for."""
GIVE_UP_RECOVERY = 120.0
"""Seconds after which a partition of a dead worker that nobody takes is no part of its failover any more."""
FREE_ORPHANS_EVERY = 10.0
GIVE_BACK = 3.0
"""Seconds that the end of a worker waits for a hub that is away."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a worker is, apart from the id that it gets with each registration."""

    queue: str
    pools: list[str]
    build_id: str
    definitions: dict[str, list[str]]
    connections: int
    can_own: bool
    cache_capacity: int
    config: str


class Keeper(Periodic):
    """Registers, fences the dead, acquires and releases by the plan, and gives all back at the end.

    `shares` has what is owned, by pool. `on_registered(worker_id)`: a new identity, nothing of the old one is valid;
    `on_mode(mode)` is awaited when the hub was switched.
    """

    doing = "look after ownership"

    def __init__(
        self,
        db: Database,
        me: Identity,
        *,
        router: Router,
        notifier: Notifier,
        clock: Clock,
        term: Term,
        figures: Callable[[], str],
        interval: float = RENEW_EVERY,
    ) -> None:
        super().__init__(interval)
        self._every = interval
        self.db, self.me, self.router, self.notifier = db, me, router, notifier
        self.clock, self.term, self.figures = clock, term, figures
        self.worker_id: UUID = new_id()
        self.shares = {pool: Share(self, pool) for pool in me.pools}
        self.mode = "owner"
        self.grants: list[str] = []
        self.refusals: dict[str, str] = {}
        self.driving = Driving()
        self.lease: Lease | None = None
        self.draining = False
        self.on_registered: list[Callable[[UUID], None]] = []
        self.on_mode: list[Callable[[str], Awaitable[None]]] = []
        self.failovers = self.tenures = 0
        self._buried: dict[UUID, float] = {}  # dead workers whose partitions are on their way to others
        self.peers = 0
        self.scanned_at = self._trust_after = self._orphans_at = 0.0
        self._leave: list[Callable[[], None]] = []
        self._turn = asyncio.Lock()
        self._registering: asyncio.Future[tuple[str, int]] | None = None

    def distrusted(self) -> bool:
        """True when the lease may have ended: nothing is decided until it is renewed."""
        return not self.term.trusts(self.clock.monotonic())

    @property
    def partitions(self) -> int:
        return sum(len(share.epochs) for share in self.shares.values())

    # --- life

    async def _open(self) -> None:
        self._leave = [
            self.router.subscribe(OWNERS, self._owners_changed),
            self.router.subscribe(SWITCH, lambda _: self.nudge()),
        ]
        async with self._turn:
            await self._register()
        try:
            await self.run_once()
        except Exception as exc:  # the loop comes back to it
            log.warning("the first look at ownership failed: %s", exc or type(exc).__name__)
        self.notifier.owners(self.me.pools)

    def _owners_changed(self, pools: Sequence[str]) -> None:
        if set(pools) & set(self.me.pools):
            self.nudge()

    async def _register(self) -> None:
        """A new identity: at the start, and after a fence. The session lock comes first, so that no peer takes it for dead."""
        if self.lease is not None:
            await self.lease.stop()
        for share in self.shares.values():
            share.clear()
        self.worker_id, self.grants, self.refusals = new_id(), [], {}
        lock_key = self.worker_id.int & 0x7FFF_FFFF_FFFF_FFFF
        self.scanned_at = self.clock.monotonic()
        self.lease = Lease(
            self.db,
            self.worker_id,
            lock_key,
            term=self.term,
            clock=self.clock,
            loop=asyncio.get_running_loop(),
            driving=self.driving,
            lost=self.nudge,
            figures=self.figures,
            scanned_at=lambda: self.scanned_at,
        )
        await self.lease.start()
        sent_at = self.clock.monotonic()
        registration = workers.Registration(
            self.worker_id,
            self.me.queue,
            self.me.pools,
            self.me.build_id,
            lock_key,
            self.term.ttl,
            socket.gethostname(),
            os.getpid(),
            json.dumps(self.me.definitions),
            self.me.connections,
            self.me.can_own,
            self.me.cache_capacity,
            self.me.config,
        )
        # Not given up half-way: what arrives after a cancelled start would be nobody's to take back.
        self._registering = asyncio.ensure_future(workers.register(self.db, registration))
        self.mode, now_us = await asyncio.shield(self._registering)
        if isinstance(self.clock, HubClock):
            self.clock.observe(now_us, sent_at, self.clock.monotonic())
        self.lease.registered(sent_at)
        self.tenures += 1
        for callback in self.on_registered:
            callback(self.worker_id)
        for follow in self.on_mode:
            await follow(self.mode)

    # --- one scan

    async def run_once(self) -> None:
        self.interval = self._every * random.uniform(0.7, 1.0)  # peers that look in turn notice a death sooner
        await self._bounded()

    async def _bounded(self) -> None:
        """Bounded by half a lease: a connection that went silent must not hold up the next look."""
        async with asyncio.timeout(max(1.0, self.term.ttl / 2)), self._turn:
            await self._once()

    async def _once(self) -> None:
        look = await partitions.look(self.db, self.worker_id, self.me.pools)
        self._looked()
        if look.state not in ("active", "draining"):
            if self.stopping.is_set():
                return
            log.warning("worker %s was fenced while it was away; it starts over", self.worker_id)
            await self._register()
            look = await partitions.look(self.db, self.worker_id, self.me.pools)
        if look.mode != self.mode:
            await self._switch(look.mode)
            look = await partitions.look(self.db, self.worker_id, self.me.pools)
        now = self.clock.monotonic()
        self.peers = sum(1 for peer in look.peers if peer.locked and not peer.lapsed)
        dead = [
            peer.worker_id
            for peer in look.peers
            if peer.state == "fenced" or (now > self._trust_after and is_dead(peer.state, peer.lapsed, peer.locked))
        ]
        if dead:
            await self._bury(dead)
            look = await partitions.look(self.db, self.worker_id, self.me.pools)
        if self.draining or self.mode != "owner" or not self.me.can_own:
            self._buried.clear()
            return
        if set(self.grants) != set(self.me.pools):
            await self._ask_for_grants()
            look = await partitions.look(self.db, self.worker_id, self.me.pools)
        if now > self._orphans_at:
            self._orphans_at = now + FREE_ORPHANS_EVERY
            if await partitions.free_orphans(self.db, self.me.pools):
                look = await partitions.look(self.db, self.worker_id, self.me.pools)
        for pool in self.grants:
            await self._balance(self.shares[pool], look)
        await self._tell_recovery()

    def _looked(self) -> None:
        """After an outage of the hub (or of this process) everybody's lease has run out: the others get the time to renew."""
        now = self.clock.monotonic()
        if now - self.scanned_at > max(SCANNING, self.term.ttl / 2):
            self._trust_after = now + SCANNING
        self.scanned_at = now

    async def _bury(self, dead: list[UUID]) -> None:
        """Fences them, which frees what they owned; gives back what they had taken; wakes the peers, for their part."""
        log.warning("fencing %s: their sessions or leases ended", ", ".join(map(str, dead)))
        self.failovers += await workers.fence(self.db, dead)
        await partitions.free_of(self.db, dead)
        self.notifier.owners(self.me.pools)
        for pool in await workflow_tasks.unclaim_of(self.db, dead):
            self.notifier.pool(pool)
        for queue in set(await activity_tasks.release(self.db, dead)):
            self.notifier.queue(queue)
        await workers.forget(self.db, dead)
        self._buried |= dict.fromkeys(dead, self.clock.monotonic())

    async def _tell_recovery(self) -> None:
        """How long a failover took is known once the last partition has an owner again."""
        if self._buried:
            done = await workers.recovered(self.db, list(self._buried))
            oldest = self.clock.monotonic() - GIVE_UP_RECOVERY
            self._buried = {each: at for each, at in self._buried.items() if each not in done and at > oldest}
            if self._buried:  # looks again soon, then ever less often: a pool that nobody else serves stays without an owner
                waited = self.clock.monotonic() - max(self._buried.values())
                asyncio.get_running_loop().call_later(max(SECOND_PHASE, waited / 5), self.nudge)

    async def _ask_for_grants(self) -> None:
        """Ownership of a pool is for workers that register the same types; the others hear what differs."""
        asked_before = dict(self.refusals)
        async with self.db.transaction() as session:
            await workers.turn(session, self.me.queue)
            owners = await workers.owners(session, self.worker_id, self.me.pools)
            self.refusals = {}
            for pool in self.me.pools:
                why = refusal(pool, dict(self.me.definitions), self.me.build_id, owners)
                if why is not None:
                    self.refusals[pool] = why
            granted = [pool for pool in self.me.pools if pool not in self.refusals]
            news = granted != self.grants or self.refusals != asked_before
            if news:
                await workers.grant(session, self.worker_id, granted, json.dumps(self.refusals) if self.refusals else None)
        fresh = [pool for pool in granted if pool not in self.grants]
        self.grants = granted
        for pool, why in self.refusals.items():
            if asked_before.get(pool) != why:
                log.warning("refused to own partitions of %r, and stands by: %s", pool, why)
        if fresh:
            await partitions.ensure(self.db, fresh)
            for pool in fresh:  # this worker may have the code that a failed run waited for
                await workflow_tasks.retry_failed(self.db, pool)

    async def _balance(self, share: Share, look: Look) -> None:
        live = 1 + sum(
            1 for peer in look.peers if share.pool in peer.grants and peer.scanning and peer.locked and peer.state == "active"
        )
        idle = share.idle()
        if idle:
            await partitions.release(self.db, self.worker_id, share.pool, idle)
            for partition in idle:
                share.leaving.pop(partition, None)
            log.info("released %d partitions of %r, %d owners now", len(idle), share.pool, live)
            self.notifier.owners([share.pool])
        wanted = plan(share.epochs, live, look.free.get(share.pool, 0))
        if wanted.surplus:
            share.leave(wanted.surplus)
            asyncio.get_running_loop().call_later(SECOND_PHASE, self.nudge)
        elif wanted.acquire or share.unsure:
            share.unsure = True
            held = await partitions.acquire(self.db, pool=share.pool, worker_id=self.worker_id, size=wanted.acquire)
            share.unsure = False
            new = share.now_holds(held)
            if new:
                log.info("acquired %d partitions of %r", len(new), share.pool)

    async def _switch(self, mode: str) -> None:
        """The hub was switched. Nothing that was decided under the old mode can land any more."""
        log.info("the hub is in %s mode now", mode)
        self.mode = mode
        if mode != "owner":
            for share in self.shares.values():
                share.clear()
            self.grants, self.refusals = [], {}
            await workers.grant(self.db, self.worker_id, [], None)
        for follow in self.on_mode:
            await follow(mode)

    # --- the end of a tenure

    async def fenced(self) -> None:
        """A commit was refused. A new identity if this one is over, else what is owned is asked anew."""
        lost = self.worker_id
        async with self._turn:
            if self.worker_id != lost or self.stopping.is_set():
                return
            look = await partitions.look(self.db, self.worker_id, self.me.pools)
            if look.state not in ("active", "draining"):
                await self._register()
            elif look.mode != self.mode:
                await self._switch(look.mode)
            elif self.mode == "sticky":
                for pool in await workflow_tasks.unclaim_of(self.db, [self.worker_id]):
                    self.notifier.pool(pool)
            else:
                for pool, share in self.shares.items():
                    share.leaving = {}
                    held = await partitions.acquire(self.db, pool=pool, worker_id=self.worker_id, size=0)
                    share.epochs = {}
                    share.now_holds(held)
        self.nudge()

    async def hand_over(self) -> None:
        """Releases all that is owned and wakes the peers, while activities still run here (O-3)."""
        async with self._turn:
            self.draining, self.grants = True, []
            for share in self.shares.values():
                share.clear()
            await workers.drain(self.db, self.worker_id)
            await partitions.free_of(self.db, [self.worker_id])
            for pool in await workflow_tasks.unclaim_of(self.db, [self.worker_id]):
                self.notifier.pool(pool)
        self.notifier.owners(self.me.pools)
        await self.notifier.flush()

    async def _close(self) -> None:
        for leave in self._leave:
            leave()
        try:
            async with asyncio.timeout(GIVE_BACK):
                if self._registering is not None:
                    await asyncio.wait({self._registering})
                if not self.draining:
                    await self.hand_over()
                for pool in await workflow_tasks.unclaim_of(self.db, [self.worker_id]):
                    self.notifier.pool(pool)
                for queue in set(await activity_tasks.release(self.db, [self.worker_id])):
                    self.notifier.queue(queue)
                await workers.forget(self.db, [self.worker_id])
        except Exception as exc:
            why = str(exc) or type(exc).__name__
            log.warning("could not release ownership, peers will wait for the lease: %s", why)
        if self.lease is not None:
            await self.lease.stop()

    def report(self) -> dict[str, Any]:
        """For `effective_config` and the metrics."""
        return {
            "mode": self.mode,
            "partitions": {pool: len(share.epochs) for pool, share in self.shares.items()},
            "refusals": dict(self.refusals),
        }
