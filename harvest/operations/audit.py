"""Who did what over HTTP: the row is there before the act, its status follows."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from harvest.coalesce import Coalescer
from harvest.hub import audit
from harvest.hub.audit import Deed
from harvest.hub.database import Database
from harvest.ids import new_id
from harvest.operations.site import Site
from harvest.service import Periodic


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """`target` has ids and names only. `status` (of HTTP) is None while the call is under way, or where it died."""

    audit_id: UUID
    at: datetime
    actor: str
    token_id: UUID | None
    address: str | None
    method: str
    route: str
    target: dict[str, Any]
    status: int | None
    ended_at: datetime | None


log = logging.getLogger("harvest.operations")
GATHER = 0.25
"""Seconds for which statuses are gathered: nobody waits for them."""
FORGET_EVERY = 600.0
"""Seconds between deletions of what is too old."""
AT_ONCE = 2_000
"""Rows of one deletion."""


class Auditor:
    """Writes the rows of a server; concurrent ones go together. `flush()` before it goes."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self._begins: Coalescer[Deed, None] = Coalescer(self._begin)
        self._ended: list[tuple[UUID, int]] = []
        self._writing: asyncio.Task[None] | None = None

    async def begin(
        self, *, actor: str, token_id: UUID | None, address: str | None, method: str, route: str, target: dict[str, Any]
    ) -> UUID:
        """Returns once the row is committed; the log is flushed in order, so that no act after it is durable before it."""
        deed = Deed(new_id(), actor, token_id, address, method, route, json.dumps(target))
        await self._begins.submit(deed)
        return deed.audit_id

    def finish(self, audit_id: UUID, status: int) -> None:
        """Its status will be stored shortly."""
        self._ended.append((audit_id, status))
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write())

    async def flush(self) -> None:
        """Returns once the statuses so far are stored, or could not be."""
        ended, self._ended = self._ended, []
        if ended:
            try:
                await audit.finish(self.db, ended)
            except Exception as exc:
                log.warning("the status of %d audited calls was not stored: %s", len(ended), type(exc).__name__)

    async def _write(self) -> None:
        try:
            while self._ended:
                await asyncio.sleep(GATHER)
                await self.flush()
        finally:
            self._writing = None

    async def _begin(self, deeds: Sequence[Deed]) -> Sequence[None]:
        await audit.begin(self.db, deeds)
        return [None] * len(deeds)


class Forgetting(Periodic):
    """Deletes rows that are older than `keep` seconds, some at a time; several servers may do it at once."""

    doing = "forget old rows of the audit"

    def __init__(self, db: Database, keep: float) -> None:
        super().__init__(FORGET_EVERY)
        self.db, self.keep = db, keep

    async def run_once(self) -> None:
        while not self.stopping.is_set() and await audit.forget(self.db, self.keep, AT_ONCE) == AT_ONCE:
            pass


async def listing(
    site: Site,
    *,
    size: int,
    actor: str | None = None,
    workflow_id: str | None = None,
    cursor: tuple[datetime, UUID] | None = None,
) -> list[AuditEntry]:
    """Newest first."""
    rows = await audit.listing(site.db, size=size, actor=actor, workflow_id=workflow_id, cursor=cursor)
    return [AuditEntry(**{**dict(row), "target": json.loads(row["target"])}) for row in rows]
