"""Sends NOTIFYs: merged while the last ones are on their way, on the pool, after the commits they speak of."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import harvest.hub.database as hub
from harvest.hub import workflow_tasks
from harvest.wakes.announcer import Announcer
from harvest.wakes.topics import CLOSED, DECIDE, OWNERS, QUEUE, REPLY, channel, chunks, dump, reply_key

log = logging.getLogger("harvest.wakes")


class Notifier:
    """`decide`, `queue`, `closed` and `reply` note a hint; one task sends what gathered.

    In sticky mode (`poking`) a wake also pokes the tasks of the runs, so that they can be claimed; a poke that is lost costs
    a scan interval, like any wake. `on_poked` are called after it, so that claims here need not wait for the NOTIFY;
    `on_strays(execution_ids)` is awaited for runs that turned out to be closed.
    """

    def __init__(self, db: hub.Database) -> None:
        self.db = db
        self.poking = False
        self.announcer = Announcer(db)
        self.on_poked: list[Callable[[], None]] = []
        self.on_strays: Callable[[list[UUID]], Awaitable[None]] | None = None
        self._sets: dict[tuple[str, str], dict[str, Any]] = {}
        self._task: asyncio.Task[None] | None = None
        self.sent = 0
        self.loop: asyncio.AbstractEventLoop | None = None

    def decide(self, pool: str, execution_id: Any, partition: int) -> None:
        self._note(DECIDE, pool, str(execution_id), [str(execution_id), partition])

    def pool(self, pool: str) -> None:
        """Tasks of this pool can be claimed."""
        self._note(DECIDE, pool, "", None)

    def owners(self, pools: list[str]) -> None:
        for pool in pools:
            self._note(OWNERS, "", pool, pool)

    def queue(self, name: str) -> None:
        self._note(QUEUE, "", name, name)

    def closed(self, execution_id: Any) -> None:
        key = str(execution_id)
        self._note(CLOSED, "", key, key)

    def reply(self, workflow_id: str, update_id: str) -> None:
        key = reply_key(workflow_id, update_id)
        self._note(REPLY, "", key, key)

    def _note(self, topic: str, group: str, key: str, value: Any) -> None:
        self._sets.setdefault((topic, group), {})[key] = value
        if self._task is None:
            self._task = (self.loop or asyncio.get_running_loop()).create_task(self._send())

    async def _send(self) -> None:
        try:
            while self._sets:
                sets, self._sets = self._sets, {}
                pairs = []
                for (topic, group), values in sets.items():
                    found = [value for value in values.values() if value is not None]
                    if topic == DECIDE and self.poking and found:
                        await self._poke([UUID(value[0]) for value in found])
                    for chunk in chunks(found, cap=7_000) if found else ([],):
                        pairs.append((channel(self.db.schema, topic), dump([group, chunk] if topic == DECIDE else chunk)))
                try:
                    await hub.notify(self.db, pairs)
                    self.sent += len(pairs)
                except Exception as exc:
                    # A lost hint costs one scan interval (F-5), so it is dropped, not retried.
                    log.warning("could not send %d wakes: %s", len(pairs), exc)
        finally:
            self._task = None

    async def _poke(self, execution_ids: list[UUID]) -> None:
        try:
            found = await workflow_tasks.poke(self.db, execution_ids)
            closed = [execution_id for execution_id in execution_ids if execution_id not in found]
            for kick in self.on_poked:
                kick()
            if closed and self.on_strays is not None:
                await self.on_strays(closed)
        except Exception as exc:
            log.warning("could not poke %d runs, a scan will find them: %s", len(execution_ids), exc)

    async def flush(self) -> None:
        """Waits until what was noted is sent."""
        task = self._task
        if task is not None:
            await asyncio.shield(task)
