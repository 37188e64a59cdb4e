"""Connections: where they go, how they are set up, and one narrow way to run a named query."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Protocol, Self, cast
from urllib.parse import urlsplit

import asyncpg

from harvest.backoff import Backoff
from harvest.errors import ConfigError, HubNotMigrated, HubUnreachable
from harvest.hub.queries import Query, queries
from harvest.hub.sqlstate import DATABASE_ERRORS, Trouble, trouble_of

Row = Mapping[str, Any]
SCHEMA = "harvest"
COMMAND_TIMEOUT = 30.0
"""Seconds after which a silent connection counts as broken."""
_AWAY_HINT = "is Postgres running, and does HARVEST_DATABASE_URL (or the URL passed) point at it?"


class Runs(Protocol):
    """Anything that runs named queries: a `Database` (a pool) or a `Session` (one connection)."""

    async def fetch(self, query: Query, **named: Any) -> Sequence[Row]: ...


def redacted(dsn: str) -> str:
    """The URL without its password, for messages and logs."""
    return re.sub(r"(://[^:/@]*):[^@]+@", r"\1:***@", re.sub(r"(password=)\S+", r"\1***", dsn))


def check_dsn(dsn: str) -> str:
    """The URL, or `ConfigError` saying what it should look like."""
    if not dsn:
        raise ConfigError(
            "database_url",
            "no database given",
            hint="pass postgresql://user@host/db, or set HARVEST_DATABASE_URL, or use `harvest dev`",
        )
    try:
        parts = urlsplit(dsn)
        _ = parts.port
    except ValueError as exc:
        raise ConfigError("database_url", f"{redacted(dsn)!r} is not a URL: {exc}") from None
    if parts.scheme not in ("postgres", "postgresql"):
        raise ConfigError("database_url", f"{redacted(dsn)!r} is not a Postgres URL", hint="it starts with postgresql://")
    return dsn


def explained(exc: BaseException, dsn: str) -> Exception:
    """The operator's form of a database error; errors that are not about the database come back as they are."""
    trouble = trouble_of(exc)
    place = redacted(dsn)
    if trouble is Trouble.SCHEMA:
        return HubNotMigrated(f"the hub at {place} is not migrated for this code: {exc}", hint="run `harvest migrate`")
    if trouble is Trouble.DENIED:
        return HubUnreachable(f"the hub at {place} refuses us: {exc}", hint="check the user, password and database name")
    if trouble in (Trouble.AWAY, Trouble.CONFLICT, Trouble.FULL):
        return HubUnreachable(f"the hub at {place} does not answer: {type(exc).__name__}: {exc}", hint=_AWAY_HINT)
    return cast(Exception, exc)


class Session:
    """One connection with a purpose of its own (commits, LISTEN)."""

    def __init__(self, connection: asyncpg.Connection[Any]) -> None:
        self.connection = connection
        self._one_at_a_time = asyncio.Lock()

    async def fetch(self, query: Query, **named: Any) -> Sequence[Row]:
        async with self._one_at_a_time:
            return cast(Sequence[Row], await self.connection.fetch(query.sql, *query.args(**named)))

    async def fetch_one(self, sql: str, args: list[Any]) -> Row:
        async with self._one_at_a_time:
            return cast(Row, await self.connection.fetchrow(sql, *args))

    async def listen(self, channel: str, callback: Callable[[str, str], None]) -> None:
        """`callback(channel, payload)` for every notification."""
        async with self._one_at_a_time:
            await self.connection.add_listener(channel, lambda _c, _pid, name, payload: callback(str(name), str(payload)))

    def on_close(self, callback: Callable[[], object]) -> None:
        def ended(_connection: Any) -> None:
            callback()

        self.connection.add_termination_listener(ended)

    @property
    def closed(self) -> bool:
        return self.connection.is_closed()

    async def close(self) -> None:
        try:
            await self.connection.close(timeout=2)
        except DATABASE_ERRORS:
            self.connection.terminate()


async def _keep(_connection: Any) -> None:
    """Our statements leave nothing behind in a session, so the round trip of a reset is saved."""


class Database:
    """A pool of connections to one hub. Open it with `async with`.

    `patience` is how long, in seconds, a call waits for a database that is away before `HubUnreachable`.
    """

    def __init__(self, dsn: str, *, schema: str = SCHEMA, size: int = 8, patience: float = 10.0, name: str = "harvest") -> None:
        self.dsn, self.schema, self.size, self.patience, self.name = check_dsn(dsn), schema, size, patience, name
        self.closed_because: str | None = None
        self._pool: asyncpg.Pool[Any] | None = None
        self._user_pool: asyncpg.Pool[Any] | None = None

    async def open(self) -> None:
        try:
            self._pool = await asyncpg.create_pool(
                self.dsn,
                min_size=1,
                max_size=self.size,
                server_settings=self._settings(),
                timeout=self.patience,
                command_timeout=COMMAND_TIMEOUT,
                reset=_keep,
            )
        except (*DATABASE_ERRORS, ValueError) as exc:
            raise explained(exc, self.dsn) from exc

    async def close(self) -> None:
        pools = [p for p in (self._pool, self._user_pool) if p is not None]
        self._pool = self._user_pool = None
        for pool in pools:
            try:
                await asyncio.wait_for(pool.close(), 5)
            except DATABASE_ERRORS:
                pool.terminate()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        await self.close()

    def _settings(self, **more: str) -> dict[str, str]:
        return {
            "search_path": self.schema,
            "application_name": self.name,
            # A client that vanished without a word is noticed, and its locks go, within half a minute.
            "tcp_keepalives_idle": "10",
            "tcp_keepalives_interval": "5",
            "tcp_keepalives_count": "3",
            # Our transactions are short: one whose process was stopped in the middle gives its locks back.
            "idle_in_transaction_session_timeout": "10000",
            **more,
        }

    async def session(self, *, timeout: float = COMMAND_TIMEOUT, **settings: str) -> Session:
        """A connection of its own, outside the pool; a statement may take `timeout` seconds."""
        try:
            connection = await asyncpg.connect(
                self.dsn,
                server_settings=self._settings(**settings),
                timeout=self.patience,
                statement_cache_size=1024,
                command_timeout=timeout,
            )
        except DATABASE_ERRORS as exc:
            raise explained(exc, self.dsn) from exc
        return Session(connection)

    async def fetch(self, query: Query, **named: Any) -> Sequence[Row]:
        """Runs a query that is safe to run twice; waits out a database that is away, up to `patience`."""
        args = query.args(**named)
        return await self._patiently(lambda pool: pool.fetch(query.sql, *args))

    async def fetch_once(self, query: Query, **named: Any) -> Sequence[Row]:
        """Like `fetch`, tried once: for loops that come back anyway. Raises what asyncpg raises."""
        if self._pool is None:
            raise asyncpg.InterfaceError("the pool is closed")
        return cast(Sequence[Row], await self._pool.fetch(query.sql, *query.args(**named)))

    async def _patiently(self, run: Callable[[asyncpg.Pool[Any]], Any]) -> Sequence[Row]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.patience
        tries, backoff = 0, Backoff(0.05, cap=1.0)
        while True:
            if self._pool is None:
                if self.closed_because is not None:
                    raise HubUnreachable(self.closed_because)
                raise HubUnreachable(f"the connection to {redacted(self.dsn)} is closed", hint="open it with `async with`")
            try:
                return cast(Sequence[Row], await run(self._pool))
            except DATABASE_ERRORS as exc:
                tries += 1
                if not trouble_of(exc).passes or loop.time() > deadline:
                    raise explained(exc, self.dsn) from exc
            await asyncio.sleep(backoff.delay(tries))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Session]:
        """A transaction on a pooled connection; not retried. `HubUnreachable` when the database goes away in it."""
        if self._pool is None:
            raise HubUnreachable("the connection is closed", hint="open it with `async with`")
        try:
            async with self._pool.acquire() as connection, connection.transaction():
                yield Session(cast("asyncpg.Connection[Any]", connection))
        except DATABASE_ERRORS as exc:
            if trouble_of(exc) is Trouble.AWAY:
                raise explained(exc, self.dsn) from exc
            raise

    @asynccontextmanager
    async def user_transaction(self) -> AsyncIterator[Any]:
        """A transaction on a connection set up as the user's own would be: their search path, not ours."""
        if self._user_pool is None:
            self._user_pool = await asyncpg.create_pool(self.dsn, min_size=0, max_size=self.size, timeout=self.patience)
        async with self._user_pool.acquire() as connection, connection.transaction():
            yield connection

    def inside(self, connection: Any) -> AbstractAsyncContextManager[Session]:
        """Named queries within a transaction that is open on somebody's connection."""
        return borrowed(connection, self.schema)


_NOTIFY = queries("notify")


async def ping(db: Runs) -> None:
    await db.fetch(_NOTIFY["ping"])


async def notify(db: Runs, pairs: list[tuple[str, str]]) -> None:
    """Sends `(channel, payload)` pairs. Never part of a transaction that appends history."""
    await db.fetch(_NOTIFY["notify"], channels=[c for c, _ in pairs], payloads=[p for _, p in pairs])


@asynccontextmanager
async def borrowed(connection: Any, schema: str) -> AsyncIterator[Session]:
    """A caller's own connection, inside the caller's transaction, with our search path for the moment.

    Raises `ConfigError` when it is not an asyncpg connection in a transaction.
    """
    if not isinstance(connection, asyncpg.Connection) and not hasattr(connection, "is_in_transaction"):
        raise ConfigError("connection", f"expected an asyncpg connection, got {type(connection).__name__}")
    if not connection.is_in_transaction():
        raise ConfigError("connection", "no transaction is open on it", hint="use `async with connection.transaction():`")
    session = Session(connection)
    path = (await session.fetch(_NOTIFY["show_path"]))[0]["current_setting"]
    await session.fetch(_NOTIFY["set_path"], path=schema)
    try:
        yield session
    finally:
        if connection.is_in_transaction():
            try:
                await session.fetch(_NOTIFY["set_path"], path=path)
            except asyncpg.InFailedSQLTransactionError:
                pass  # the caller's transaction failed; its rollback restores the path
