"""Worker processes, their leases, and their right to write."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from harvest.hub.database import Row, Runs, Session
from harvest.hub.queries import queries

_Q = queries("workers")


async def register(
    db: Runs, *, worker_id: UUID, pool: str, build_id: str, lock_key: int, ttl: float, host: str, pid: int, definitions: str,
    connections: int,
) -> None:  # fmt: skip
    """A new worker with one tenure row per commit connection. `ttl` in seconds."""
    await db.fetch(
        _Q["register"],
        worker_id=worker_id,
        pool=pool,
        build_id=build_id,
        lock_key=lock_key,
        ttl=ttl,
        host=host,
        pid=pid,
        definitions=definitions,
        connections=connections,
    )


async def renew(db: Runs, worker_id: UUID, *, ttl: float, figures: str | None) -> int | None:
    """The hub's time in microseconds, or None when this worker was fenced or forgotten."""
    rows = await db.fetch(_Q["renew"], worker_id=worker_id, ttl=ttl, figures=figures)
    return rows[0]["now_us"] if rows else None


async def others(db: Runs, worker_id: UUID, pool: str) -> Sequence[Row]:
    """worker_id, state, lapsed, locked of all other workers of the pool that may hold something."""
    return await db.fetch(_Q["others"], worker_id=worker_id, pool=pool)


async def fence(db: Runs, worker_ids: Sequence[UUID]) -> None:
    """After this no commit of these workers can land."""
    await db.fetch(_Q["fence"], worker_ids=list(worker_ids))


async def forget(db: Runs, worker_ids: Sequence[UUID]) -> None:
    await db.fetch(_Q["forget"], worker_ids=list(worker_ids))


async def live(db: Runs, pool: str | None = None) -> Sequence[Row]:
    return await db.fetch(_Q["live"], pool=pool)


async def try_lock(session: Session, key: int) -> bool:
    """Takes a session-level advisory lock if nobody holds it."""
    return bool((await session.fetch(_Q["try_lock"], key=key))[0]["pg_try_advisory_lock"])
