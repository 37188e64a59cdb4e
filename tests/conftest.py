"""A real Postgres, and a database per test made from a migrated template.

`HARVEST_TEST_DSN=postgresql://…` runs the suite against any server of version 14 or later; without it the
embedded one is started.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import uuid
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

import harvest
from harvest import Client, Worker, WorkerConfig
from harvest.hub.database import Database
from harvest.hub.embedded import EmbeddedPostgres
from harvest.hub.migrate import migrate, migrations

TEMPLATE_LOCK = 77_001


def with_database(dsn: str, name: str) -> str:
    return urlunsplit(urlsplit(dsn)._replace(path=f"/{name}"))


async def _template(server: str) -> str:
    """A migrated database to copy; made once, by whichever test process comes first."""
    name = "harvest_template_" + "_".join(m.checksum[:8] for m in migrations())
    connection = await asyncpg.connect(server)
    try:
        await connection.execute("select pg_advisory_lock($1)", TEMPLATE_LOCK)
        if not await connection.fetchval("select true from pg_database where datname = $1", name):
            draft = f"{name}_draft"
            await connection.execute(f'drop database if exists "{draft}"')
            await connection.execute(f'create database "{draft}"')
            db = Database(with_database(server, draft))
            await db.open()
            await migrate(db)
            await db.close()
            await connection.execute(f'alter database "{draft}" rename to "{name}"')
        await connection.execute("select pg_advisory_unlock($1)", TEMPLATE_LOCK)
    finally:
        await connection.close()
    return name


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """URL of the server's maintenance database."""
    given = os.environ.get("HARVEST_TEST_DSN")
    if given:
        yield given
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        postgres = EmbeddedPostgres(Path(tempfile.gettempdir()) / f"harvest-tests-{os.getuid()}" / "pg")
        url = postgres.start()
    yield url
    postgres.stop()


@pytest.fixture(scope="session")
def template(server: str) -> str:
    return asyncio.run(_template(server))


BEHAVIOUR = ("activities", "client", "conformance", "decider")
"""Directories whose tests on a database run in both modes, unless they are marked `owner_only`."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "hub_mode" in metafunc.fixturenames and metafunc.definition.path.parent.name in BEHAVIOUR:
        alone = metafunc.definition.get_closest_marker("owner_only")
        metafunc.parametrize("hub_mode", ["owner"] if alone else ["owner", "sticky"], indirect=True)


@pytest.fixture
def hub_mode(request: pytest.FixtureRequest) -> str:
    """How decisions are taken on the test's hub."""
    return getattr(request, "param", "owner")


@pytest.fixture
async def dsn(server: str, template: str, hub_mode: str) -> AsyncIterator[str]:
    """A migrated database of this test's own."""
    name = f"t_{uuid.uuid4().hex[:16]}"
    connection = await asyncpg.connect(server)
    await connection.execute(f'create database "{name}" template "{template}"')
    if hub_mode == "sticky":
        async with harvest.connect(with_database(server, name)) as switching:
            await switching.disable_owner_mode()
    try:
        yield with_database(server, name)
    finally:
        with contextlib.suppress(asyncpg.PostgresError, OSError):
            await connection.execute(f'drop database if exists "{name}" with (force)')
            await connection.close()


@pytest.fixture
async def client(dsn: str) -> AsyncIterator[Client]:
    async with harvest.connect(dsn) as opened:
        yield opened


@pytest.fixture
def worker(client: Client) -> Callable[..., Worker]:
    """`async with worker(a, b, …):` a worker in this process that knows these definitions."""

    def make(*definitions: object, queue: str = "default", **config: object) -> Worker:
        return Worker(client, definitions=definitions, queue=queue, config=WorkerConfig(**config))

    return make


@pytest.fixture
async def remote(dsn: str) -> AsyncIterator[Client]:
    """A client that shares nothing with the worker but the hub."""
    async with harvest.connect(dsn) as opened:
        yield opened


@pytest.fixture(params=["same process", "other process"])
def caller(request: pytest.FixtureRequest, client: Client, remote: Client) -> Client:
    """The same test through the short way and through the mailbox."""
    return client if request.param == "same process" else remote
