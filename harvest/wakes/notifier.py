"""Sends NOTIFYs: merged while the last ones are on their way, on the pool, after the commits they speak of."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import harvest.hub.database as hub
from harvest.wakes.topics import CLOSED, DECIDE, QUEUE, REPLY, channel, chunks, dump

log = logging.getLogger("harvest.wakes")


class Notifier:
    """`decide`, `queue`, `closed` and `reply` note a hint; one task sends what gathered."""

    def __init__(self, db: hub.Database) -> None:
        self.db = db
        self._sets: dict[tuple[str, str], dict[str, Any]] = {}
        self._task: asyncio.Task[None] | None = None
        self.sent = 0
        self.loop: asyncio.AbstractEventLoop | None = None

    def decide(self, pool: str, execution_id: Any, partition: int) -> None:
        self._note(DECIDE, pool, str(execution_id), [str(execution_id), partition])

    def queue(self, name: str) -> None:
        self._note(QUEUE, "", name, name)

    def closed(self, execution_id: Any) -> None:
        key = str(execution_id)
        self._note(CLOSED, "", key, key)

    def reply(self, execution_id: Any, update_id: str) -> None:
        key = f"{execution_id}/{update_id}"
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
                    for chunk in chunks(values.values(), cap=7_000):
                        pairs.append((channel(self.db.schema, topic), dump([group, chunk] if topic == DECIDE else chunk)))
                try:
                    await hub.notify(self.db, pairs)
                    self.sent += len(pairs)
                except Exception as exc:
                    # A lost hint costs one scan interval (F-5), so it is dropped, not retried.
                    log.warning("could not send %d wakes: %s", len(pairs), exc)
        finally:
            self._task = None

    async def flush(self) -> None:
        """Waits until what was noted is sent."""
        task = self._task
        if task is not None:
            await asyncio.shield(task)
