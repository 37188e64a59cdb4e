"""Brings the schema forward: numbered plain SQL files, each once, under an advisory lock."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import asyncpg

from harvest.errors import ConfigError, HubNewer, HubNotMigrated
from harvest.hub.database import SCHEMA, Database, explained, redacted

_LOCK = 0x4841_5256  # "HARV"
_NAME = re.compile(r"(\d{4})_(\w+)\.sql")


@dataclass(frozen=True, slots=True)
class Migration:
    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()[:16]


def migrations() -> list[Migration]:
    """All migrations this code knows, in order."""
    found = []
    for entry in files("harvest.migrations").iterdir():
        match = _NAME.fullmatch(entry.name)
        if match:
            found.append(Migration(int(match[1]), match[2], entry.read_text()))
    return sorted(found, key=lambda m: m.version)


def newest() -> int:
    return migrations()[-1].version


def _check_schema(schema: str) -> str:
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema):
        raise ConfigError("schema", f"{schema!r} is not a plain lower-case identifier")
    return schema


async def applied(db: Database) -> dict[int, str]:
    """Versions in the hub, with their checksums; empty where there is no schema yet."""
    async with db.transaction() as session:
        return await _applied(session.connection, db.schema)


async def _applied(connection: asyncpg.Connection[Any], schema: str) -> dict[int, str]:
    if not await connection.fetchval("select to_regclass($1) is not null", f"{schema}.schema_migrations"):
        return {}
    return {r["version"]: r["checksum"] for r in await connection.fetch("select version, checksum from schema_migrations")}


async def check_version(db: Database) -> None:
    """Raises `HubNotMigrated` or `HubNewer` when code and schema do not belong together."""
    try:
        have = max(await applied(db), default=0)
    except asyncpg.PostgresError as exc:
        raise explained(exc, db.dsn) from exc
    if have < newest():
        raise HubNotMigrated(
            f"the hub at {redacted(db.dsn)} is at schema version {have}, this code needs {newest()}",
            hint="run `harvest migrate`",
        )
    if have > newest():
        raise HubNewer(
            f"the hub at {redacted(db.dsn)} is at schema version {have}, this code knows only {newest()}",
            hint="upgrade harvest-engine on this machine",
        )


async def plan(db: Database) -> list[Migration]:
    """What `migrate` would run."""
    have = await applied(db)
    if have and max(have) > newest():
        raise HubNewer(f"the hub is at schema version {max(have)}, this code knows only {newest()}")
    return [m for m in migrations() if m.version not in have]


async def migrate(db: Database, on_step: Callable[[Migration], None] | None = None) -> list[Migration]:
    """Applies what is missing, each migration in one transaction with its record. Safe to run at once from many places."""
    schema = _check_schema(db.schema)
    session = await db.session()
    connection = session.connection
    try:
        await connection.execute("select pg_advisory_lock($1)", _LOCK)
        await connection.execute(f'create schema if not exists "{schema}"')
        await connection.execute(
            "create table if not exists schema_migrations (version int primary key, name text not null,"
            " checksum text not null, applied_at timestamptz not null default now())"
        )
        have = await _applied(connection, schema)
        for version, checksum in have.items():
            known = next((m for m in migrations() if m.version == version), None)
            if known is None:
                raise HubNewer(f"the hub has migration {version}, which this code does not know", hint="upgrade harvest-engine")
            if known.checksum != checksum:
                raise ConfigError(
                    "migrations",
                    f"{version:04d}_{known.name}.sql changed after it was applied to {redacted(db.dsn)}",
                    hint="this hub was made by another version of the code; use a database of its own",
                )
        done = []
        for migration in migrations():
            if migration.version in have:
                continue
            async with connection.transaction():
                await connection.execute(migration.sql)
                await connection.execute(
                    "insert into schema_migrations (version, name, checksum) values ($1, $2, $3)",
                    migration.version,
                    migration.name,
                    migration.checksum,
                )
            done.append(migration)
            if on_step is not None:
                on_step(migration)
        return done
    except (asyncpg.PostgresError, OSError) as exc:
        raise explained(exc, db.dsn) from exc
    finally:
        await session.close()


__all__ = ["SCHEMA", "Migration", "applied", "check_version", "migrate", "migrations", "newest", "plan"]
