"""Tokens of the HTTP API. Secrets never get here: only their SHA-256."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from harvest.hub.database import Row, Runs
from harvest.hub.queries import queries

_Q = queries("tokens")


async def create(
    db: Runs, *, token_id: UUID, name: str, hash: bytes, scopes: Sequence[str], created_by: str, lifetime: float | None
) -> Row | None:
    """None where the name is taken. `lifetime` in seconds, None for ever."""
    rows = await db.fetch(
        _Q["create"], token_id=token_id, name=name, hash=hash, scopes=list(scopes), created_by=created_by, lifetime=lifetime
    )
    return rows[0] if rows else None


async def rotate(db: Runs, *, name: str, hash: bytes, grace: float, lifetime: float | None) -> Row | None:
    """None where there is no such token, or it was revoked. A `lifetime` of None leaves its end as it is."""
    rows = await db.fetch(_Q["rotate"], name=name, hash=hash, grace=grace, lifetime=lifetime)
    return rows[0] if rows else None


async def revoke(db: Runs, name: str) -> Row | None:
    rows = await db.fetch(_Q["revoke"], name=name)
    return rows[0] if rows else None


async def listing(db: Runs) -> Sequence[Row]:
    return await db.fetch(_Q["listing"])


async def configured(db: Runs) -> bool:
    """True once any token was made, also when all of them have been revoked."""
    found: bool = (await db.fetch(_Q["any"]))[0]["configured"]
    return found


async def valid(db: Runs, hash: bytes) -> Row | None:
    """token_id, name, scopes, until."""
    rows = await db.fetch(_Q["valid"], hash=hash)
    return rows[0] if rows else None


async def holds(db: Runs, hashes: Sequence[bytes]) -> set[bytes]:
    """Those whose tokens are neither revoked nor over, and that were not rotated away."""
    return {bytes(row["hash"]) for row in await db.fetch(_Q["holds"], hashes=hashes)}


async def used(db: Runs, token_id: UUID) -> None:
    await db.fetch(_Q["used"], token_id=token_id)
