"""The dead letters: runs parked with an error, and those that reached the cap of history."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from harvest.hub.database import Row, Runs
from harvest.hub.queries import queries

_Q = queries("dead_letters")


async def listing(
    db: Runs,
    *,
    size: int,
    cursor: tuple[datetime, UUID] | None = None,
    type: str | None = None,
    queue: str | None = None,
    error: str | None = None,
    workflow_id: str | None = None,
) -> Sequence[Row]:
    """Newest first; `cursor` is (at, execution_id) of the last one seen."""
    at, last = cursor or (None, None)
    return await db.fetch(
        _Q["listing"],
        type=type,
        queue=queue,
        error=error,
        workflow_id=workflow_id,
        cursor_at=at,
        cursor_id=last,
        size=size,
    )


async def one(db: Runs, execution_id: UUID) -> Row | None:
    rows = await db.fetch(_Q["one"], execution_id=execution_id)
    return rows[0] if rows else None


async def causes(db: Runs, *, type: str | None = None, queue: str | None = None) -> Sequence[Row]:
    """type, error, message, count, oldest, newest, example: the most frequent first."""
    return await db.fetch(_Q["causes"], type=type, queue=queue)


async def redrive(db: Runs, execution_id: UUID) -> Row | None:
    """Makes a parked run due again: pool, partition, workflow_id; None for one that is closed, paused or claimed."""
    rows = await db.fetch(_Q["redrive"], execution_id=execution_id)
    return rows[0] if rows else None


async def delete(db: Runs, execution_id: UUID) -> None:
    await db.fetch(_Q["delete"], execution_id=execution_id)
