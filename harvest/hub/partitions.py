"""Who owns what."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from harvest.hub.database import Row, Runs
from harvest.hub.queries import queries

_Q = queries("partitions")


async def ensure(db: Runs, pool: str) -> None:
    await db.fetch(_Q["ensure"], pool=pool)


async def acquire(db: Runs, *, pool: str, worker_id: UUID) -> dict[int, int]:
    """partition → epoch of everything that is this worker's now; empty when it is fenced."""
    rows = await db.fetch(_Q["acquire"], pool=pool, worker_id=worker_id)
    return {row["partition"]: row["epoch"] for row in rows}


async def release(db: Runs, worker_id: UUID) -> None:
    await db.fetch(_Q["release"], worker_id=worker_id)


async def owned(db: Runs, pool: str) -> Sequence[Row]:
    return await db.fetch(_Q["owned"], pool=pool)
