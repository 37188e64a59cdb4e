"""Worker processes, their leases, and their right to write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from harvest.hub.database import Row, Runs, Session
from harvest.hub.queries import queries

_Q = queries("workers")


@dataclass(frozen=True, slots=True)
class Registration:
    """What a worker says of itself (W-1). `ttl` in seconds; `connections` is how many commit connections it has,
    `config` what is really on (JSON)."""

    worker_id: UUID
    pool: str
    pools: list[str]
    build_id: str
    lock_key: int
    ttl: float
    host: str
    pid: int
    definitions: str
    connections: int
    can_own: bool
    cache_capacity: int
    config: str = "{}"


async def register(db: Runs, new: Registration) -> tuple[str, int]:
    """A new worker with one tenure row per commit connection; returns the hub's mode, and its time in microseconds."""
    fields = {name: getattr(new, name) for name in Registration.__slots__}
    row = (await db.fetch(_Q["register"], **fields))[0]
    return row["mode"], row["now_us"]


async def renew(db: Runs, worker_id: UUID, *, ttl: float, figures: str | None, scan_age: float) -> int | None:
    """The hub's time in microseconds, or None when this worker was fenced or forgotten."""
    rows = await db.fetch(_Q["renew"], worker_id=worker_id, ttl=ttl, figures=figures, scan_age=scan_age)
    return rows[0]["now_us"] if rows else None


async def turn(db: Runs, queue: str) -> None:
    """Waits for this transaction's turn to be admitted to ownership in a queue."""
    await db.fetch(_Q["turn"], queue=queue)


async def owners(db: Runs, worker_id: UUID, pools: Sequence[str]) -> Sequence[Row]:
    """Living workers other than this one that may own in these pools."""
    return await db.fetch(_Q["owners"], worker_id=worker_id, pools=list(pools))


async def grant(db: Runs, worker_id: UUID, grants: Sequence[str], refusals: str | None) -> None:
    await db.fetch(_Q["grant"], worker_id=worker_id, grants=list(grants), refusals=refusals)


async def drain(db: Runs, worker_id: UUID) -> None:
    """From now on peers do not count it as an owner."""
    await db.fetch(_Q["drain"], worker_id=worker_id)


async def fence(db: Runs, worker_ids: Sequence[UUID]) -> int:
    """After this no commit of these workers can land; returns how many were not fenced before."""
    return len(await db.fetch(_Q["fence"], worker_ids=list(worker_ids)))


async def recovered(db: Runs, worker_ids: Sequence[UUID]) -> set[UUID]:
    """Notes for which of these dead workers everything has an owner again, and returns them."""
    return {row["worker_id"] for row in await db.fetch(_Q["recovered"], worker_ids=list(worker_ids))}


async def failovers(db: Runs, size: int) -> Sequence[Row]:
    """The workers that were fenced, last first."""
    return await db.fetch(_Q["failovers"], size=size)


async def failover_count(db: Runs) -> int:
    """How many workers were ever fenced."""
    n: int = (await db.fetch(_Q["failover_count"]))[0]["n"]
    return n


async def forget(db: Runs, worker_ids: Sequence[UUID]) -> None:
    await db.fetch(_Q["forget"], worker_ids=list(worker_ids))


async def live(db: Runs, pool: str | None = None) -> Sequence[Row]:
    return await db.fetch(_Q["live"], pool=pool)


async def is_live(db: Runs, worker_id: UUID) -> bool:
    """False once it has stopped, was fenced, or its lease has run out."""
    live: bool = (await db.fetch(_Q["is_live"], worker_id=worker_id))[0]["live"]
    return live


async def try_lock(session: Session, key: int) -> bool:
    """Takes a session-level advisory lock if nobody holds it."""
    return bool((await session.fetch(_Q["try_lock"], key=key))[0]["pg_try_advisory_lock"])
