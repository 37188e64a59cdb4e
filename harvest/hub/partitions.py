"""Who owns what."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from harvest.hub.database import Database, Row, Runs
from harvest.hub.queries import queries

_Q = queries("partitions")


class Peer(NamedTuple):
    """Another worker that shares a pool. `scanning`: its loop looked around within 3 s; `locked`: its session lives."""

    worker_id: UUID
    state: str
    grants: list[str]
    lapsed: bool
    scanning: bool
    locked: bool


class Look(NamedTuple):
    """What one scan saw. `state` is this worker's own (None: unknown to the hub); `free` is per pool."""

    mode: str
    state: str | None
    free: dict[str, int]
    peers: list[Peer]


async def ensure(db: Runs, pools: Sequence[str]) -> None:
    await db.fetch(_Q["ensure"], pools=list(pools))


async def look(db: Database, worker_id: UUID, pools: Sequence[str]) -> Look:
    row = (await db.fetch_once(_Q["look"], worker_id=worker_id, pools=list(pools)))[0]
    found: list[dict[str, Any]] = json.loads(row["peers"] or "[]")
    peers = [Peer(**{**peer, "worker_id": UUID(peer["worker_id"])}) for peer in found]
    return Look(row["mode"], row["state"], json.loads(row["free"] or "{}"), peers)


async def acquire(db: Runs, *, pool: str, worker_id: UUID, size: int = 512) -> dict[int, int]:
    """partition → epoch of everything that is this worker's now; at most `size` of it new. Empty when it is fenced."""
    rows = await db.fetch(_Q["acquire"], pool=pool, worker_id=worker_id, size=size)
    return {row["partition"]: row["epoch"] for row in rows}


async def release(db: Runs, worker_id: UUID, pool: str, partitions: Sequence[int]) -> None:
    await db.fetch(_Q["release"], worker_id=worker_id, pool=pool, partitions=list(partitions))


async def free_of(db: Runs, worker_ids: Sequence[UUID]) -> None:
    """Frees all that these workers own."""
    await db.fetch(_Q["free_of"], worker_ids=list(worker_ids))


async def free_orphans(db: Runs, pools: Sequence[str]) -> int:
    """Frees what belongs to workers that are no more; returns how much that was."""
    return len(await db.fetch(_Q["free_orphans"], pools=list(pools)))


async def owned(db: Runs, pool: str) -> Sequence[Row]:
    """partition, worker_id, epoch and since of all 512, in order."""
    return await db.fetch(_Q["owned"], pool=pool)


async def shares(db: Runs, pool: str | None = None) -> Sequence[Row]:
    """pool, worker_id (None: free), partitions, least and greatest epoch."""
    return await db.fetch(_Q["shares"], pool=pool)
