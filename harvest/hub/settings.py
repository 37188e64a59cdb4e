"""How decisions are taken on this hub: the switch between owner mode and sticky mode (O-8)."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from harvest.hub.database import Database, Runs, notify
from harvest.hub.queries import queries

_Q = queries("settings")


async def mode(db: Runs) -> str:
    """`owner` or `sticky`."""
    found: str = (await db.fetch(_Q["mode"]))[0]["mode"]
    return found


async def since(db: Runs) -> datetime:
    """When the hub was put into its mode."""
    found: datetime = (await db.fetch(_Q["mode"]))[0]["mode_since"]
    return found


class Mark(NamedTuple):
    """Which shard a hub is, of how many, of which set of hubs; Nones where it was never told."""

    shard: int | None
    shards: int | None
    shard_set: UUID | None


async def shard(db: Runs) -> Mark:
    row = (await db.fetch(_Q["shard"]))[0]
    return Mark(row["shard"], row["shards"], row["shard_set"])


async def take_shard(db: Runs, shard: int, shards: int, shard_set: UUID) -> bool:
    """Tells a hub which shard it is; False when it had been told before."""
    return bool(await db.fetch(_Q["take_shard"], shard=shard, shards=shards, shard_set=shard_set))


async def mode_and_shard(db: Runs) -> tuple[str, tuple[int, int] | None]:
    """How the hub takes decisions, and (shard, shards) where it is one of several."""
    row = (await db.fetch(_Q["mode"]))[0]
    return row["mode"], None if row["shard"] is None else (row["shard"], row["shards"])


async def switch(db: Database, to: str, *, lock_timeout: float, channel: str, payload: str) -> None:
    """One transaction: the guard, the mode, and the end of all that was held in the old one.

    Takes SHARE ROW EXCLUSIVE on the tasks, within `lock_timeout` seconds: readers go on, writers wait. The caller has to own
    the table. Raises what asyncpg raises; nothing has changed then.
    """
    if to == "owner":
        await db.fetch(_Q["stamp_all"])
    async with db.transaction() as session:
        await session.fetch(_Q["lock_timeout"], milliseconds=str(round(lock_timeout * 1000)))
        await session.fetch(_Q["lock"])
        await session.fetch(_Q["guard_on" if to == "owner" else "guard_off"])
        await session.fetch(_Q["set_mode"], mode=to)
        await session.fetch(_Q["turn_tenures"], mode=to)
        if to == "owner":
            await session.fetch(_Q["end_claims"])
            await session.fetch(_Q["stamp_all"])
        else:
            await session.fetch(_Q["end_ownership"])
            await session.fetch(_Q["end_running"])
        await notify(session, [(channel, payload)])
