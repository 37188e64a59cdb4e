"""Figures over time: what each worker counted in an interval, and what the hub held then."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from harvest.hub.database import Row, Runs
from harvest.hub.queries import queries

_Q = queries("figures")
HUB = UUID(int=0)
"""In place of a worker: what somebody saw of the whole hub."""


async def record(db: Runs, worker_id: UUID, seconds: float, figures: str) -> None:
    """`figures` is a JSON object of what was counted in the last `seconds`."""
    await db.fetch(_Q["record"], worker_id=worker_id, seconds=seconds, figures=figures)


async def survey(db: Runs, every: float) -> None:
    """Backlog, dead letters, open runs: counted once per `every` seconds, whoever asks."""
    await db.fetch(_Q["survey"], every=every)


async def since(db: Runs, seconds: float) -> tuple[float, Sequence[Row]]:
    """The hub's time, and rows of at (both seconds since 1970), worker_id, figures (JSON); oldest first."""
    now: float = (await db.fetch(_Q["now"]))[0]["now"]
    return now, await db.fetch(_Q["since"], seconds=seconds)


async def forget(db: Runs, seconds: float) -> None:
    """Deletes what is older."""
    await db.fetch(_Q["forget"], seconds=seconds)
