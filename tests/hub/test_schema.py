"""Migrations, queries, plans: what the hub promises about Postgres."""

from __future__ import annotations

import asyncio
import json
import random
import string
import uuid

import asyncpg
import pytest

import harvest
from harvest import errors
from harvest.hub.commit import statements_to_prepare
from harvest.hub.database import Database, check_dsn, redacted
from harvest.hub.migrate import applied, check_version, migrate, newest, plan
from harvest.hub.queries import Query, all_queries, queries
from harvest.hub.sqlstate import Trouble, trouble_of
from harvest.ids import new_id, partition_of
from tests.conftest import with_database


@pytest.fixture
async def empty(server):
    name = f"e_{uuid.uuid4().hex[:12]}"
    connection = await asyncpg.connect(server)
    await connection.execute(f'create database "{name}"')
    yield with_database(server, name)
    await connection.execute(f'drop database "{name}" with (force)')
    await connection.close()


async def test_every_query_prepares(dsn):
    db = Database(dsn)
    await db.open()
    session = await db.session()
    for query in [*all_queries(), *statements_to_prepare()]:
        try:
            await session.connection.prepare(query.sql)
        except asyncpg.PostgresError as exc:
            pytest.fail(f"{query.name}: {exc}")
    await session.close()
    await db.close()


async def test_migrate_from_many_places_at_once(empty):
    databases = [Database(empty) for _ in range(4)]
    for db in databases:
        await db.open()
    assert len(await plan(databases[0])) == newest()
    done = await asyncio.gather(*(migrate(db) for db in databases))
    assert sum(map(len, done)) == newest()
    assert max(await applied(databases[0])) == newest()
    assert await plan(databases[0]) == [] == await migrate(databases[0])
    for db in databases:
        await db.close()


async def test_a_hub_that_does_not_fit_is_named(empty):
    with pytest.raises(errors.HubNotMigrated, match="harvest migrate"):
        async with harvest.connect(empty):
            pass
    db = Database(empty)
    await db.open()
    await migrate(db)
    await db.fetch(Query("t", "insert into schema_migrations values (9999, 'future', 'x')"))
    with pytest.raises(errors.HubNewer, match="9999"):
        await check_version(db)
    with pytest.raises(errors.HubNewer, match="9999"):
        await migrate(db)
    await db.fetch(Query("t", "delete from schema_migrations where version = 9999"))
    await db.fetch(Query("t", "update schema_migrations set checksum = 'other'"))
    with pytest.raises(errors.ConfigError, match="changed after it was applied"):
        await migrate(db)
    await db.close()


@pytest.mark.parametrize(
    ("dsn", "error", "said"),
    [
        ("postgresql://u:secret@127.0.0.1:1/x", errors.HubUnreachable, r"u:\*\*\*@127.0.0.1:1"),
        ("", errors.ConfigError, "HARVEST_DATABASE_URL"),
        ("mysql://x", errors.ConfigError, "postgresql://"),
        ("postgresql://h:port/x", errors.ConfigError, "not a URL"),
    ],
)
async def test_bad_addresses_are_named_without_their_password(dsn, error, said, monkeypatch):
    monkeypatch.delenv("HARVEST_DATABASE_URL", raising=False)
    with pytest.raises(error, match=said) as caught:
        async with harvest.connect(dsn):
            pass
    assert "secret" not in str(caught.value)
    assert "secret" not in redacted("host=x password=secret")
    assert check_dsn("postgresql://h/x")


async def test_a_missing_database_is_named(server):
    with pytest.raises(errors.HubUnreachable, match="nowhere"):
        async with harvest.connect(with_database(server, "nowhere")):
            pass


async def test_partitions_are_the_same_in_python_and_sql(dsn):
    dice = random.Random(5)
    ids = ["", "a", "order-7", "é\U0001f33e"] + [
        "".join(dice.choices(string.printable + "äß\u4e2d", k=dice.randint(1, 60))) for _ in range(500)
    ]
    connection = await asyncpg.connect(dsn)
    rows = await connection.fetch("select id, harvest.partition_of(id) as p from unnest($1::text[]) as id", ids)
    await connection.close()
    assert [(r["id"], r["p"]) for r in rows] == [(i, partition_of(i)) for i in ids]


def test_ids_are_ordered_by_time():
    made = [new_id() for _ in range(100)]
    assert len(set(made)) == 100
    assert all(i.version == 7 for i in made)
    assert sorted(made, key=lambda i: i.int >> 80) == made


@pytest.mark.parametrize(
    ("exc", "trouble"),
    [
        (ConnectionRefusedError(), Trouble.AWAY),
        (asyncpg.AdminShutdownError("x"), Trouble.AWAY),
        (asyncpg.InternalClientError("cannot switch to state 12"), Trouble.AWAY),
        (asyncpg.InterfaceError("connection is closed"), Trouble.AWAY),
        (asyncpg.DeadlockDetectedError("x"), Trouble.CONFLICT),
        (asyncpg.SerializationError("x"), Trouble.CONFLICT),
        (asyncpg.UniqueViolationError("x"), Trouble.DATA),
        (asyncpg.DataError("a value that is closed"), Trouble.DATA),
        (asyncpg.InvalidTextRepresentationError("x"), Trouble.DATA),
        (asyncpg.UndefinedTableError("x"), Trouble.SCHEMA),
        (asyncpg.InvalidPasswordError("x"), Trouble.DENIED),
        (asyncpg.DiskFullError("x"), Trouble.FULL),
        (KeyError("x"), Trouble.BUG),
    ],
)
def test_troubles_are_sorted_by_sqlstate(exc, trouble):
    assert trouble_of(exc) is trouble


HOT = {
    "workflow_tasks.scan": {
        "pool": "default",
        "partitions": [1, 2, 3],
        "ahead": 1.0,
        "each": 100,
        "queue": "q",
        "names": ["a"],
    },
    "workflow_tasks.running": {"pool": "default", "partitions": [1, 2, 3]},
    "workflow_tasks.claim": {"pool": "default", "worker_id": "id", "size": 100},
    "workflow_tasks.overlooked": {"pool": "default"},
    "messages.load": {"execution_ids": "ids"},
    "activity_tasks.claim": {"queue": "default", "names": ["a"], "worker_id": "id", "size": 50},
    "activity_tasks.done": {"execution_ids": "ids"},
    "activity_tasks.expired": {"size": 100},
    "history.load": {"execution_ids": "ids", "starts": [1] * 20},
    "history.events": {"execution_id": "id", "after": 0, "size": 100},
    "executions.load": {"execution_ids": "ids"},
    "executions.outcomes": {"execution_ids": "ids"},
    "executions.latest": {"workflow_ids": ["w-5"]},
    "executions.describe": {"execution_id": None, "workflow_id": "w-5"},
}
FILL = """
insert into executions (execution_id, workflow_id, type, pool, partition, state, seed, created_at, closed_at, input)
select gen_random_uuid(), 'w-' || n, 't', 'default', partition_of('w-' || n), 'COMPLETED', n, now() - n * interval '1 s',
       now(), '[]'
from generate_series(1, 250000) n;
insert into decisions select execution_id, d, d, now(), execution_id, 'warm', '[]'
from executions, generate_series(1, 4) d;
insert into messages (message_id, execution_id, pool, partition, kind, key, event, consumed_at)
select gen_random_uuid(), execution_id, pool, partition, 'signal', 'k', '{}', now() from executions;
analyze
"""


@pytest.mark.timeout(180)
async def test_hot_queries_keep_their_plan_at_a_million_rows_of_closed_history(dsn):
    """No scan of a whole large table, and few pages touched, however much is closed."""
    db = Database(dsn)
    await db.open()
    session = await db.session(plan_cache_mode="force_generic_plan", jit="off")
    for statement in FILL.split(";"):
        await session.connection.execute(statement, timeout=170)
    assert await session.connection.fetchval("select count(*) from decisions") == 1_000_000
    ids = [r["execution_id"] for r in await session.connection.fetch("select execution_id from executions limit 20")]
    for name, arguments in HOT.items():
        file, _, query_name = name.partition(".")
        query = queries(file)[query_name]
        given = {k: {"ids": ids, "id": ids[0]}.get(v, v) if isinstance(v, str) else v for k, v in arguments.items()}
        async with session.connection.transaction():
            await session.connection.fetch(f"explain (format json) {query.sql}", *query.args(**given))
            found = await session.connection.fetchval(
                f"explain (analyze, buffers, format json) {query.sql}", *query.args(**given)
            )
        top = json.loads(found)[0]["Plan"]
        scans = [
            n
            for n in nodes(top)
            if n["Node Type"] == "Seq Scan" and n["Relation Name"] in ("executions", "decisions", "messages")
        ]
        assert not scans, f"{name} scans {scans[0]['Relation Name']}"
        assert top["Shared Hit Blocks"] + top["Shared Read Blocks"] < 1500, name
    await session.close()
    await db.close()


def nodes(plan: dict):
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)
