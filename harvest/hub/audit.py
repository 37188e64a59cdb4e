"""Who did what over HTTP: one row per mutating call, written before it acts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from harvest.hub.database import Row, Runs
from harvest.hub.queries import queries

_Q = queries("audit")


class Deed(NamedTuple):
    """`target` is a JSON object of ids and names: no part of a payload."""

    audit_id: UUID
    actor: str
    token_id: UUID | None
    address: str | None
    method: str
    route: str
    target: str


async def begin(db: Runs, deeds: Sequence[Deed]) -> None:
    await db.fetch(
        _Q["begin"],
        audit_ids=[d.audit_id for d in deeds],
        actors=[d.actor for d in deeds],
        token_ids=[d.token_id for d in deeds],
        addresses=[d.address for d in deeds],
        methods=[d.method for d in deeds],
        routes=[d.route for d in deeds],
        targets=[d.target for d in deeds],
    )


async def finish(db: Runs, ended: Sequence[tuple[UUID, int]]) -> None:
    """`ended` are (audit_id, HTTP status)."""
    await db.fetch(_Q["finish"], audit_ids=[i for i, _ in ended], statuses=[s for _, s in ended])


async def forget(db: Runs, seconds: float, most: int) -> int:
    """Deletes up to `most` rows that are older; how many there were."""
    gone: int = (await db.fetch(_Q["forget"], seconds=seconds, most=most))[0]["gone"]
    return gone


async def listing(
    db: Runs,
    *,
    size: int,
    actor: str | None = None,
    workflow_id: str | None = None,
    cursor: tuple[datetime, UUID] | None = None,
) -> Sequence[Row]:
    """Newest first; `cursor` is (at, audit_id) of the last one seen."""
    at, last = cursor or (None, None)
    return await db.fetch(_Q["listing"], actor=actor, workflow_id=workflow_id, cursor_at=at, cursor_id=last, size=size)
