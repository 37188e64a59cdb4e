"""Answers that are too long to travel as NOTIFYs."""

from __future__ import annotations

from uuid import UUID

from harvest.errors import NoAnswer
from harvest.hub.database import Runs
from harvest.hub.queries import queries

_Q = queries("answers")


async def put(db: Runs, question: UUID, body: str) -> None:
    """Stores an answer; those that nobody fetched within a minute go."""
    await db.fetch(_Q["put"], question=question, body=body)


async def take(db: Runs, question: UUID) -> str:
    """The answer, once. Raises `NoAnswer` when it is gone."""
    rows = await db.fetch(_Q["take"], question=question)
    if not rows:
        raise NoAnswer("the answer was stored and is gone")
    body: str = rows[0]["body"]
    return body
