"""Who did what over HTTP: the row is there before the act, its status follows."""

from __future__ import annotations

import json
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


class Auditor:
    """Writes the rows of a server; concurrent ones go together."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self._begins: Coalescer[Deed, None] = Coalescer(self._begin)
        self._ends: Coalescer[tuple[UUID, int], None] = Coalescer(self._finish)

    async def begin(
        self, *, actor: str, token_id: UUID | None, address: str | None, method: str, route: str, target: dict[str, Any]
    ) -> UUID:
        """Returns once the row is committed; the log is flushed in order, so that no act after it is durable before it."""
        deed = Deed(new_id(), actor, token_id, address, method, route, json.dumps(target))
        await self._begins.submit(deed)
        return deed.audit_id

    async def finish(self, audit_id: UUID, status: int) -> None:
        await self._ends.submit((audit_id, status))

    async def _begin(self, deeds: Sequence[Deed]) -> Sequence[None]:
        await audit.begin(self.db, deeds)
        return [None] * len(deeds)

    async def _finish(self, ended: Sequence[tuple[UUID, int]]) -> Sequence[None]:
        await audit.finish(self.db, ended)
        return [None] * len(ended)


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
