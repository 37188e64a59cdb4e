"""The LISTEN connection of a process. When it breaks it comes back, and says so: wakes were lost meanwhile."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable

from harvest.backoff import Backoff
from harvest.hub.database import Database, Session, ping
from harvest.hub.sqlstate import DATABASE_ERRORS
from harvest.service import Service
from harvest.wakes.router import Router
from harvest.wakes.topics import channel

log = logging.getLogger("harvest.wakes")


PING_EVERY = 5.0


class Listener(Service):
    """Feeds notifications into a router. `on_connect(session)` runs after each (re)connection: it is where a
    worker takes its session lock, and where whoever relies on wakes looks for what it missed."""

    def __init__(self, db: Database, router: Router, topics: list[str]) -> None:
        super().__init__()
        self.db, self.router, self.topics = db, router, topics
        self.session: Session | None = None
        self.on_connect: list[Callable[[Session], Awaitable[None]]] = []
        self._lost = asyncio.Event()

    async def _open(self) -> None:
        await self._connect()

    async def _connect(self) -> None:
        old, self.session = self.session, None
        if old is not None:
            await old.close()
        session = await self.db.session()
        loop = asyncio.get_running_loop()
        self._lost = lost = asyncio.Event()
        session.on_close(lambda: loop.call_soon_threadsafe(lost.set) if not loop.is_closed() else None)
        for topic in self.topics:
            await session.listen(channel(self.db.schema, topic), self._received)
        self.session = session
        for callback in self.on_connect:
            await callback(session)

    async def add(self, topics: list[str]) -> None:
        """Listens to more topics from now on."""
        for topic in topics:
            if topic not in self.topics:
                self.topics.append(topic)
                if self.session is None:
                    continue  # on its way back: it will listen to all of them
                try:
                    await self.session.listen(channel(self.db.schema, topic), self._received)
                except DATABASE_ERRORS as exc:
                    log.warning("the LISTEN connection broke: %s", exc)
                    self._lost.set()

    def _received(self, name: str, payload: str) -> None:
        topic = name.removeprefix(f"{self.db.schema}_")
        try:
            value = json.loads(payload)
        except ValueError:
            log.warning("wake on %s is not JSON: %.100s", name, payload)
            return
        self.router.dispatch(topic, value)

    async def _run(self) -> None:
        backoff, tries = Backoff(0.05, cap=2.0), 0
        while not self.stopping.is_set():
            ended = asyncio.create_task(self.stopping.wait())
            lost = asyncio.create_task(self._lost.wait())
            await asyncio.wait({ended, lost}, timeout=PING_EVERY, return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
            lost.cancel()
            await self._check()
            while not self.stopping.is_set() and self._lost.is_set():
                tries += 1
                try:
                    await self._connect()
                    tries = 0
                except Exception as exc:
                    self._lost.set()
                    if tries == 1:
                        log.warning("lost the LISTEN connection, reconnecting: %s", exc)
                    await asyncio.sleep(backoff.delay(tries))

    async def _check(self) -> None:
        """A connection that went silent is as good as lost."""
        session = self.session
        if session is None or self.stopping.is_set() or self._lost.is_set():
            return
        try:
            await asyncio.wait_for(ping(session), PING_EVERY)
        except Exception as exc:
            log.warning("the LISTEN connection does not answer: %s", exc)
            self._lost.set()

    async def _close(self) -> None:
        if self.session is not None:
            await self.session.close()
            self.session = None
