"""The worker's side of watching: tells where runs have got to, a few times a second, while somebody watches."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any
from uuid import UUID

import harvest.hub.database as hub
from harvest.wakes.router import Router
from harvest.wakes.topics import CHANGED, WATCH, channel, chunks, dump

log = logging.getLogger("harvest.wakes")
PACE = 0.2
"""Seconds between notices."""
MOST = 150
"""Runs that one notice names, those that are followed first; then it says that there are more."""


class Announcer:
    """`note` costs a comparison while nobody watches."""

    def __init__(self, db: hub.Database) -> None:
        self.db = db
        self.until = 0.0
        self._followed: set[str] = set()
        self._runs: dict[str, list[Any]] = {}
        self._sending: asyncio.Task[None] | None = None

    def listen(self, router: Router) -> None:
        router.subscribe(WATCH, self._asked)

    def _asked(self, request: list[Any]) -> None:
        seconds, followed = request
        now = time.monotonic()
        # Several may watch: what each of them follows is named until the next time it asks.
        self._followed = set(followed) if now > self.until else self._followed | set(followed)
        if len(self._followed) > 10 * MOST:
            self._followed = set(followed)
        self.until = now + seconds

    def note(self, execution_id: UUID, workflow_id: str, type: str, state: str, decision: int) -> None:
        """A decision of this run is durable."""
        if time.monotonic() > self.until:
            return
        key = str(execution_id)
        self._runs[key] = [key, workflow_id, type, state, decision]
        if self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._send())

    async def _send(self) -> None:
        try:
            while self._runs:
                await asyncio.sleep(PACE)
                runs, self._runs = self._runs, {}
                first = [row for key, row in runs.items() if key in self._followed]
                rows: list[Any] = first[:MOST]
                if len(runs) > len(rows):
                    others = [row for key, row in runs.items() if key not in self._followed]
                    rows += others[: MOST - len(rows)]
                if len(runs) > len(rows):
                    rows.append(None)
                name = channel(self.db.schema, CHANGED)
                try:
                    await hub.notify(self.db, [(name, dump(chunk)) for chunk in chunks(rows)])
                except Exception as exc:
                    log.warning("could not tell what changed: %s", exc)  # who watches looks now and then
        finally:
            self._sending = None
