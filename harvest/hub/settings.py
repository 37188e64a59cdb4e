"""How decisions are taken on this hub: the switch between owner mode and sticky mode."""

from __future__ import annotations

from harvest.hub.database import Runs
from harvest.hub.queries import queries

_Q = queries("settings")


async def mode(db: Runs) -> str:
    """`owner` or `sticky`."""
    found: str = (await db.fetch(_Q["mode"]))[0]["mode"]
    return found
