"""The thread that keeps the lease, so that code which blocks the event loop cannot cost it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Callable
from uuid import UUID

from harvest.clock import Clock, HubClock
from harvest.hub import partitions, workers, workflow_tasks
from harvest.hub.database import Database, Session
from harvest.ownership.term import RENEW_EVERY, Term
from harvest.ownership.watchdog import PATIENCE, Driving, look_at

log = logging.getLogger("harvest.ownership")


class Lease:
    """One identity's lease: a connection of its own that holds the session lock, and a renewal each second.

    `lost()` is called on the worker's loop when the hub no longer knows this identity. The thread also pings the loop:
    when it does not answer, the code that holds it is named after 2 s and interrupted after a whole lease; when that does
    not help, the lease is given up.
    """

    def __init__(
        self,
        db: Database,
        worker_id: UUID,
        lock_key: int,
        *,
        term: Term,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        driving: Driving,
        lost: Callable[[], None],
        figures: Callable[[], str],
        scanned_at: Callable[[], float],
    ) -> None:
        self.db, self.worker_id, self.lock_key, self.term, self.clock = db, worker_id, lock_key, term, clock
        self.driving, self.lost, self.figures, self.scanned_at = driving, lost, figures, scanned_at
        self.blocked_by = ""
        self._main, self._main_thread = loop, threading.get_ident()
        self._every = min(RENEW_EVERY, term.ttl / 4)
        self._session: Session | None = None
        self._registered = self._given_up = False
        self._asked_at = self._answered_at = self._woke_at = self._again_at = 0.0
        self._named = self._interrupted = self._holds_lock = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._locked: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, name="harvest-lease", daemon=True)

    async def start(self) -> None:
        """Returns once the session lock is held; raises what kept it from being taken."""
        self._thread.start()
        await asyncio.wrap_future(self._locked)

    def registered(self, sent_at: float) -> None:
        """The hub knows the worker now: renewals begin."""
        self.term.renewed(sent_at)
        self._registered = True

    async def stop(self) -> None:
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None:
            try:
                loop.call_soon_threadsafe(stop.set)
            except RuntimeError:
                return  # it has ended by itself
        if self._thread.is_alive():
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join, 5.0)

    # --- on the thread

    def _run(self) -> None:
        try:
            asyncio.run(self._keep())
        except BaseException as exc:
            if not self._locked.done():
                self._locked.set_exception(exc)
            else:
                log.error("the lease thread ended: %s", exc, exc_info=exc)

    async def _keep(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        await self._connected()
        self._locked.set_result(None)
        self._woke_at = self._answered_at = self.clock.monotonic()
        watching = asyncio.create_task(self._watch_on())  # whatever the hub does, or does not
        failures = 0
        try:
            while not self._stop.is_set() and not self._given_up:
                try:
                    if self._registered:
                        async with asyncio.timeout(max(1.0, self.term.ttl / 2)):
                            await self._renew()
                    failures = 0
                except Exception as exc:
                    failures += 1
                    if failures in (2, 10) or failures % 60 == 0:
                        log.warning("cannot renew the lease (%d in a row): %s", failures, exc)
                    await self._drop_session()
                await self._pause(self._every if failures == 0 else min(self._every, 0.05 * 2 ** min(failures, 5)))
            await self._stop.wait()
        finally:
            watching.cancel()
            await self._drop_session()

    async def _watch_on(self) -> None:
        while True:
            try:
                await self._watch()
            except Exception as exc:
                log.warning("the watchdog stumbled: %s", str(exc) or type(exc).__name__)
            await asyncio.sleep(0.25)

    async def _pause(self, seconds: float) -> None:
        """Sleeps, unless the connection ends."""
        assert self._stop is not None
        end = self.clock.monotonic() + seconds
        while not self._stop.is_set():
            left = end - self.clock.monotonic()
            if left <= 0 or self._given_up:
                return
            lost = self._session is not None and self._session.closed
            if lost:
                return  # take the lock again at once
            try:
                await asyncio.wait_for(self._stop.wait(), min(left, 0.25))
            except TimeoutError:
                pass

    async def _connected(self) -> Session:
        if self._session is None or self._session.closed:
            self._session, self._holds_lock = await self.db.session(synchronous_commit="off"), False
        if not self._holds_lock:
            self._holds_lock = await workers.try_lock(self._session, self.lock_key)
            if not self._holds_lock:  # a connection that broke may keep it for a while; a peer's look, for a moment
                log.warning("the session lock of this worker is taken; it tries again with each renewal")
        return self._session

    async def _drop_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _renew(self) -> None:
        session = await self._connected()
        sent_at = self.clock.monotonic()
        scan_age = max(0.0, sent_at - self.scanned_at())
        now_us = await workers.renew(session, self.worker_id, ttl=self.term.ttl, figures=self.figures(), scan_age=scan_age)
        if now_us is None:
            self._give_up()
            return
        if isinstance(self.clock, HubClock):
            self.clock.observe(now_us, sent_at, self.clock.monotonic())
        self.term.renewed(sent_at)

    def _give_up(self) -> None:
        self._given_up = True
        self.term.trusted_until = 0.0
        self._tell(self.lost)

    def _tell(self, callback: Callable[[], None]) -> None:
        try:
            self._main.call_soon_threadsafe(callback)
        except RuntimeError:
            pass  # the loop is closed: the process ends

    # --- the watchdog

    def _answer(self) -> None:
        self._answered_at = self.clock.monotonic()

    async def _watch(self) -> None:
        now = self.clock.monotonic()
        stopped, self._woke_at = now - self._woke_at > 1.5, now
        if self._answered_at >= self._asked_at or stopped:  # a process that was stopped was not stuck
            if self._named and self._answered_at >= self._asked_at:
                log.warning("the loop runs again")
            self._named = self._interrupted = False
            self.blocked_by, self._again_at = "", 0.0
            self._asked_at = now
            if stopped:
                self._answered_at = 0.0
            self._tell(self._answer)
            return
        stuck = now - self._asked_at
        if stuck > PATIENCE and not self._named:
            self._named = True
            where, stack = look_at(self._main_thread)
            self.blocked_by = where
            log.warning("the event loop is held by %s (%s); its stack:\n%s", where, self._driven(), stack)
        if stuck > self.term.ttl and not self._interrupted:
            self._interrupted = True
            if self.driving.interrupt(self.driving.run):
                log.error("%s held the loop for %.0f s: its decision is broken off", self._driven(), stuck)
        if stuck > self.term.ttl + 1.0 and not self._given_up:
            await self._surrender(stuck)
        if self._given_up and stuck > self._again_at:  # whenever it can be broken off after all
            self._again_at = stuck + self.term.ttl
            self.driving.interrupt(self.driving.run)

    def _driven(self) -> str:
        run = self.driving.run
        if run is None:
            return "no workflow was being driven"
        return f"workflow {run.info.type if run.info is not None else '?'} {run.workflow_id!r}"

    async def _surrender(self, stuck: float) -> None:
        """Nothing frees the loop: peers go on with the partitions, and the run that holds it gets a strike."""
        run, where = self.driving.run, self.blocked_by
        log.error("the loop is stuck since %.0f s in %s: this worker gives up its lease", stuck, where)
        try:
            async with asyncio.timeout(5.0):
                session = await self._connected()
                if run is not None:
                    await workflow_tasks.strike_stuck(session, run.execution_id, self.worker_id, where, stuck)
                await workers.fence(session, [self.worker_id])
                await partitions.free_of(session, [self.worker_id])
        except Exception as exc:
            log.warning("could not give up the lease, it lapses: %s", exc)
        self._give_up()
