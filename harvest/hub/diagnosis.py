"""Reads for people: what is wrong with a hub, and where a run's decisions were taken."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from harvest.hub.database import Row, Runs
from harvest.hub.queries import queries

_Q = queries("diagnosis")


async def read(db: Runs, name: str) -> Sequence[Row]:
    """One of the queries without arguments; see `sql/diagnosis.sql`."""
    return await db.fetch(_Q[name])


async def decisions(db: Runs, execution_id: UUID) -> Sequence[Row]:
    """Every decision of a run with who took it and how."""
    return await db.fetch(_Q["decisions"], execution_id=execution_id)


async def task(db: Runs, execution_id: UUID) -> Row | None:
    rows = await db.fetch(_Q["task"], execution_id=execution_id)
    return rows[0] if rows else None


async def waiting_on(db: Runs, execution_id: UUID) -> Sequence[Row]:
    """Activity tasks, open children and kinds of unread mail of a run."""
    return await db.fetch(_Q["waiting_on"], execution_id=execution_id)


async def owner_of(db: Runs, pool: str, partition: int) -> Row | None:
    """Who owns a partition, and how that worker is."""
    rows = await db.fetch(_Q["owner_of"], pool=pool, partition=partition)
    return rows[0] if rows else None


async def timed_decisions(db: Runs, execution_id: UUID) -> Sequence[Row]:
    """decision, at, replay_mode, events (JSON text) of a run, in order."""
    return await db.fetch(_Q["timed_decisions"], execution_id=execution_id)


async def newest(db: Runs) -> tuple[UUID | None, UUID | None, str]:
    """The newest run, the newest dead letter, and the mode of the hub."""
    row = (await db.fetch(_Q["newest"]))[0]
    return row["run"], row["letter"], row["mode"]


async def standing(db: Runs, execution_ids: Sequence[UUID]) -> Sequence[Row]:
    """execution_id, workflow_id, type, state and last decision of these runs."""
    return await db.fetch(_Q["standing"], execution_ids=list(execution_ids))
