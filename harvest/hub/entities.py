"""Entities as the hub knows them: the state that each recorded last."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from harvest.hub.database import Row, Runs
from harvest.hub.queries import queries

_Q = queries("entities")
KEEP = 60.0
"""Seconds that decisions are kept which no cold load reads any more."""


async def listing(db: Runs, type: str, *, prefix: str = "", after: str = "", size: int = 200) -> Sequence[Row]:
    """Live entities of a type by key, those after key `after`."""
    return await db.fetch(_Q["listing"], type=type, prefix=prefix, after=after, size=size)


async def types(db: Runs) -> dict[str, int]:
    """How many live entities there are of each type."""
    return {row["type"]: row["entities"] for row in await db.fetch(_Q["types"])}


async def find(db: Runs, type: str, key: str) -> Row | None:
    rows = await db.fetch(_Q["find"], type=type, key=key)
    return rows[0] if rows else None


async def of_partitions(db: Runs, pool: str, partitions: Sequence[int], types: Sequence[str]) -> Sequence[Row]:
    """Live entities: execution_id, key, type."""
    return await db.fetch(_Q["of_partitions"], pool=pool, partitions=list(partitions), types=list(types))


async def pools(db: Runs, type: str) -> Sequence[Row]:
    """Where entities of a type live: pool, partitions, entities."""
    return await db.fetch(_Q["pools"], type=type)


async def head(db: Runs, workflow_id: str) -> Row | None:
    """execution_id, pool and last decision of the open run of an entity."""
    rows = await db.fetch(_Q["head"], workflow_id=workflow_id)
    return rows[0] if rows else None


async def token(db: Runs, workflow_id: str) -> Row | None:
    """execution_id and last event_id of an entity; None where there is none."""
    rows = await db.fetch(_Q["token"], workflow_id=workflow_id)
    return rows[0] if rows else None


async def owners(db: Runs, pools: Sequence[str], type: str) -> dict[tuple[str, int], UUID]:
    """(pool, partition) → worker, for owners that answer SQL over the type."""
    rows = await db.fetch(_Q["owners"], pools=list(pools), type=type)
    return {(row["pool"], row["partition"]): row["worker_id"] for row in rows}


async def served(db: Runs) -> set[str]:
    """Pools that some living worker serves."""
    return {row["pool"] for row in await db.fetch(_Q["served"])}


async def responder(db: Runs, pool: str, partition: int, type: str) -> UUID | None:
    """Who answers SQL over one entity: its owner, else any worker that can."""
    rows = await db.fetch(_Q["responder"], pool=pool, partition=partition, type=type)
    return rows[0]["worker_id"] if rows else None


async def prune(db: Runs, below: dict[UUID, int]) -> None:
    """Deletes the decisions of each entity before the given one."""
    await db.fetch(_Q["prune"], execution_ids=list(below), belows=list(below.values()), keep=KEEP)


async def put_away(db: Runs) -> None:
    """Deletes answers that have been there for an hour to requests which nobody can repeat."""
    await db.fetch(_Q["put_away"])
