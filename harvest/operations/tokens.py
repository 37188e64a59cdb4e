"""Tokens of the HTTP API: made once, shown once, kept as SHA-256.

A token is 256 random bits, so that a plain hash of it cannot be guessed back. Whoever verifies tokens keeps what it found
for a while; a NOTIFY after each change tells it to look again.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from harvest.errors import ConfigError, TokenExists, TokenNotFound
from harvest.hub import tokens
from harvest.hub.database import Row, notify
from harvest.ids import check_name, new_id
from harvest.operations.site import Site
from harvest.wakes.topics import TOKENS, channel, dump

SCOPES = ("read", "operate", "admin", "sql")
"""`operate` includes read, and `admin` both. Whoever may ask entities in SQL is told so, whatever else it may do."""
_INCLUDES = {"read": ("read",), "operate": ("operate", "read"), "admin": ("admin", "operate", "read"), "sql": ("sql",)}
PREFIX = "hv_"


@dataclass(frozen=True, slots=True)
class Token:
    """What is known of a token; its secret is nowhere."""

    token_id: UUID
    name: str
    scopes: list[str]
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    rotated_at: datetime | None
    previous_until: datetime | None
    revoked_at: datetime | None
    used_at: datetime | None


@dataclass(frozen=True, slots=True)
class NewToken:
    """`secret` is shown this once."""

    token: Token
    secret: str = field(repr=False)


class Bearer(NamedTuple):
    """Who has presented a valid token; `until` is when it ends to be valid."""

    token_id: UUID
    name: str
    scopes: frozenset[str]
    until: datetime | None


def check_scopes(scopes: Sequence[str]) -> list[str]:
    """In their order, each once. Raises `ConfigError`."""
    unknown = [scope for scope in scopes if scope not in SCOPES]
    if unknown or not scopes:
        raise ConfigError("scopes", f"must be some of {', '.join(SCOPES)}, got {list(scopes)!r}")
    return [scope for scope in SCOPES if scope in scopes]


def granted(scopes: Sequence[str]) -> frozenset[str]:
    """The scopes with all that they include."""
    return frozenset(each for scope in scopes for each in _INCLUDES.get(scope, ()))


def _new_secret() -> tuple[str, bytes]:
    secret = PREFIX + secrets.token_urlsafe(32)
    return secret, digest(secret)


def digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _token(row: Row) -> Token:
    return Token(**dict(row))


async def create(site: Site, name: str, scopes: Sequence[str], created_by: str, lifetime: float | None) -> NewToken:
    """Raises `TokenExists`, `ConfigError`."""
    check_name("name", name)
    wanted = check_scopes(scopes)
    secret, hash = _new_secret()
    row = await tokens.create(
        site.db, token_id=new_id(), name=name, hash=hash, scopes=wanted, created_by=created_by, lifetime=lifetime
    )
    if row is None:
        raise TokenExists(f"there is a token named {name!r} already", hint="choose another name, or rotate it")
    await _changed(site)
    return NewToken(_token(row), secret)


async def rotate(site: Site, name: str, grace: float, lifetime: float | None) -> NewToken:
    """A new secret; the old one holds for `grace` seconds. Raises `TokenNotFound`."""
    secret, hash = _new_secret()
    row = await tokens.rotate(site.db, name=check_name("name", name), hash=hash, grace=grace, lifetime=lifetime)
    if row is None:
        raise TokenNotFound(f"there is no token named {name!r} that is not revoked")
    await _changed(site)
    return NewToken(_token(row), secret)


async def revoke(site: Site, name: str) -> Token:
    """Raises `TokenNotFound`."""
    row = await tokens.revoke(site.db, check_name("name", name))
    if row is None:
        raise TokenNotFound(f"there is no token named {name!r}")
    await _changed(site)
    return _token(row)


async def configured(site: Site) -> bool:
    """True once any token was made, also when all of them have been revoked."""
    return await tokens.configured(site.db)


async def listing(site: Site) -> list[Token]:
    return [_token(row) for row in await tokens.listing(site.db)]


async def verify(site: Site, secret: str) -> Bearer | None:
    """Who this is; None for a secret that is unknown, revoked or over."""
    row = await tokens.valid(site.db, digest(secret))
    if row is None:
        return None
    await tokens.used(site.db, row["token_id"])
    return Bearer(row["token_id"], row["name"], granted(row["scopes"]), row["until"])


async def holds(site: Site, digests: Sequence[bytes]) -> set[bytes]:
    """Those whose secrets are valid now."""
    return await tokens.holds(site.db, digests)


async def _changed(site: Site) -> None:
    await notify(site.db, [(channel(site.db.schema, TOKENS), dump(1))])
