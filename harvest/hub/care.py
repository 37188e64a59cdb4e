"""What people do to the record of a run: holds, notes, and erasure (the one rewriting of history there is)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from harvest.hub.database import Database, Row, Runs
from harvest.hub.queries import queries

_Q = queries("care")
PAGE = 500


async def hold(db: Runs, execution_id: UUID, hold: str | None) -> bool:
    """Sets or (None) lifts a legal hold; False without such a run."""
    return bool(await db.fetch(_Q["hold"], execution_id=execution_id, hold=hold))


async def note(db: Runs, execution_id: UUID, *, note_id: UUID, author: str, status: str, note: str) -> None:
    await db.fetch(_Q["note"], execution_id=execution_id, note_id=note_id, author=author, status=status, note=note)


async def notes(db: Runs, execution_id: UUID) -> Sequence[Row]:
    """at, author, status, note: oldest first."""
    return await db.fetch(_Q["notes"], execution_id=execution_id)


async def erase(db: Database, execution_id: UUID, *, check: Callable[[Row | None], Any], scrub: Callable[[str], str]) -> int:
    """Rewrites every payload of a run in one transaction and returns how many decisions it has.

    `check(row)` raises where it must not be, with the row locked; `scrub(events)` gives the JSON text to keep.
    """
    count, after = 0, 0
    async with db.transaction() as session:
        rows = await session.fetch(_Q["begin_erasure"], execution_id=execution_id)
        check(rows[0] if rows else None)
        while True:
            page = await session.fetch(_Q["page"], execution_id=execution_id, after=after, size=PAGE)
            if not page:
                break
            decisions, events = [row["decision"] for row in page], [scrub(row["events"]) for row in page]
            await session.fetch(_Q["rewrite"], execution_id=execution_id, decisions=decisions, events=events)
            count, after = count + len(page), decisions[-1]
        await session.fetch(_Q["erase_rest"], execution_id=execution_id)
    return count
