"""The tasks of open runs: what is due, and what failed."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from harvest.hub.database import Database, Row, Runs
from harvest.hub.queries import queries

_Q = queries("workflow_tasks")


async def scan(db: Database, pool: str, *, ahead: float, size: int) -> Sequence[Row]:
    """Tasks due now or within `ahead` seconds: execution_id, partition, priority, state, due_us."""
    return await db.fetch_once(_Q["scan"], pool=pool, ahead=ahead, size=size)


async def running(db: Runs, pool: str, partitions: Sequence[int]) -> Sequence[Row]:
    """Runs of these partitions whose work lived in the memory of their last owner."""
    return await db.fetch(_Q["running"], pool=pool, partitions=list(partitions))


async def strike(db: Runs, execution_id: UUID, *, strikes: int, error: str, delay: float | None) -> None:
    """Records a failed decision; `delay` seconds until the next try, None to park it."""
    await db.fetch(_Q["strike"], execution_id=execution_id, strikes=strikes, error=error, delay=delay)


async def bury(db: Runs, execution_id: UUID, *, workflow_id: str, type: str, pool: str, strikes: int, error: str) -> None:
    """Puts a poisoned run into the dead letters; the run stays open."""
    await db.fetch(
        _Q["bury"], execution_id=execution_id, workflow_id=workflow_id, type=type, pool=pool, strikes=strikes, error=error
    )


async def retry_failed(db: Runs, pool: str) -> int:
    """Makes runs parked with an error due again; returns how many."""
    rows = await db.fetch(_Q["retry_failed"], pool=pool)
    count: int = rows[0]["count"]
    return count


async def healed(db: Runs, execution_ids: Sequence[UUID]) -> None:
    """Forgets the strikes of runs that decided again."""
    await db.fetch(_Q["healed"], execution_ids=list(execution_ids))
