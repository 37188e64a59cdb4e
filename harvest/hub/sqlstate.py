"""What Postgres complains of, sorted once, by SQLSTATE, by what to do about it."""

from __future__ import annotations

import asyncio
from enum import Enum

import asyncpg

DATABASE_ERRORS = (OSError, asyncio.TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""Everything that a query can raise because of the database or the way to it."""


class Trouble(Enum):
    """AWAY: wait and come back. CONFLICT: try again at once. DATA: this input is bad, others are fine.
    SCHEMA: migrate. DENIED: wrong credentials or rights. FULL: no room or no memory. BUG: ours."""

    AWAY = "away"
    CONFLICT = "conflict"
    DATA = "data"
    SCHEMA = "schema"
    DENIED = "denied"
    FULL = "full"
    BUG = "bug"

    @property
    def passes(self) -> bool:
        """True when waiting may help."""
        return self in (Trouble.AWAY, Trouble.CONFLICT, Trouble.FULL)


_BY_CLASS = {
    "08": Trouble.AWAY,
    "57": Trouble.AWAY,
    "58": Trouble.AWAY,
    "25": Trouble.AWAY,
    "40": Trouble.CONFLICT,
    "55": Trouble.CONFLICT,
    "22": Trouble.DATA,
    "23": Trouble.DATA,
    "54": Trouble.DATA,
    "28": Trouble.DENIED,
    "53": Trouble.FULL,
}
_BY_STATE = {
    "42P01": Trouble.SCHEMA,
    "42703": Trouble.SCHEMA,
    "3F000": Trouble.SCHEMA,
    "42883": Trouble.SCHEMA,
    "3D000": Trouble.DENIED,
    "42501": Trouble.DENIED,
    "57014": Trouble.CONFLICT,
    "40003": Trouble.AWAY,
}


def trouble_of(exc: BaseException) -> Trouble:
    """The class of any error raised by asyncpg or the network under it."""
    state = getattr(exc, "sqlstate", None)
    if isinstance(state, str):
        return _BY_STATE.get(state) or _BY_CLASS.get(state[:2], Trouble.BUG)
    if isinstance(exc, asyncpg.DataError):
        return Trouble.DATA
    if isinstance(exc, asyncpg.InternalClientError):
        return Trouble.AWAY  # what a connection that breaks in the middle of an answer looks like
    if isinstance(exc, asyncpg.InterfaceError):
        text = str(exc)
        return Trouble.AWAY if "closed" in text or "released" in text or "closing" in text else Trouble.DATA
    if isinstance(exc, (OSError, asyncio.TimeoutError, EOFError)):
        return Trouble.AWAY
    if isinstance(exc, (OverflowError, UnicodeEncodeError, ValueError)):
        return Trouble.DATA
    return Trouble.BUG


def is_unique_violation(exc: BaseException) -> bool:
    """Somebody else has this key."""
    return getattr(exc, "sqlstate", None) == "23505"
