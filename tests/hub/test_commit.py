"""The fenced commit: all or nothing, and nothing for who may not."""

from __future__ import annotations

import json
import uuid

import asyncpg
import pytest

from harvest.decider.lanes import LANE_SETTINGS
from harvest.errors import Fenced
from harvest.hub import partitions, workers
from harvest.hub.commit import Batch, Taken, Tenure, commit, statement
from harvest.hub.database import Database
from harvest.hub.queries import Query
from tests.hub.test_schema import nodes

COUNT = Query("t", "select count(*) from decisions")


@pytest.fixture
async def db(dsn):
    opened = Database(dsn)
    await opened.open()
    yield opened
    await opened.close()


async def owner(db: Database, pool: str = "p") -> tuple[Tenure, dict[int, int]]:
    worker_id = uuid.uuid4()
    await partitions.ensure(db, [pool])
    await workers.register(
        db,
        workers.Registration(worker_id, pool, [pool], "b", 1, 10, "h", 1, "{}", connections=2, can_own=True, cache_capacity=0),
    )
    return Tenure(worker_id, 0, pool), await partitions.acquire(db, pool=pool, worker_id=worker_id)


def decision(number: int = 1, execution_id: uuid.UUID | None = None, events: str = "[]") -> Batch:
    batch = Batch()
    batch.add("decisions", (execution_id or uuid.uuid4(), number, 1, 1_700_000_000_000_000, "warm", events))
    return batch


async def decisions(db: Database) -> int:
    return (await db.fetch(COUNT))[0]["count"]


async def test_one_row_and_no_other_write_per_local_step(db):
    tenure, epochs = await owner(db)
    batch = decision()
    batch.epochs = {7: epochs[7]}
    session = await db.session()
    await commit(session, tenure, batch)
    assert await decisions(db) == 1
    written = (
        "select relname, n_tup_ins + n_tup_upd + n_tup_del as n from pg_stat_xact_user_tables where schemaname = 'harvest'"
    )
    async with session.connection.transaction():
        before = {r["relname"]: r["n"] for r in await session.connection.fetch(written)}
        again = decision(2)
        again.epochs = batch.epochs
        await commit(session, tenure, again)
        after = {r["relname"]: r["n"] for r in await session.connection.fetch(written)}
        touched = {name: n - before.get(name, 0) for name, n in after.items() if n != before.get(name, 0)}
    assert touched == {"decisions": 1}
    await session.close()


@pytest.mark.parametrize("how", ["tenure", "mode", "owner", "epoch", "forgotten"])
async def test_a_stale_owner_writes_nothing(db, how):
    tenure, epochs = await owner(db)
    spoil = {
        "tenure": "update tenures set fenced = true",
        "mode": "update tenures set mode = 'sticky'",
        "owner": "update partitions set worker_id = gen_random_uuid() where partition = 7",
        "epoch": "update partitions set epoch = epoch + 1 where partition = 7",
        "forgotten": "delete from tenures",
    }
    await db.fetch(Query("t", spoil[how]))
    batch = decision()
    batch.epochs = {7: epochs[7], 8: epochs[8]}
    session = await db.session()
    with pytest.raises(Fenced):
        await commit(session, tenure, batch)
    assert await decisions(db) == 0
    await session.close()


async def test_a_poisoned_row_takes_the_whole_statement_back(db):
    tenure, epochs = await owner(db)
    batch = decision()
    batch.rows["decisions"] += decision(events="{not json").rows["decisions"]
    batch.epochs = {7: epochs[7]}
    session = await db.session()
    with pytest.raises(asyncpg.PostgresError):
        await commit(session, tenure, batch)
    assert await decisions(db) == 0
    await session.close()


async def test_a_decision_has_one_writer(db):
    tenure, epochs = await owner(db)
    session, execution_id = await db.session(), uuid.uuid4()
    batch = decision(1, execution_id)
    batch.epochs = {7: epochs[7]}
    await commit(session, tenure, batch)
    with pytest.raises(asyncpg.UniqueViolationError):
        await commit(session, tenure, batch)
    await session.close()


async def test_a_fenced_or_forgotten_worker_acquires_nothing(db):
    tenure, held = await owner(db)
    assert len(held) == 512
    assert await partitions.acquire(db, pool="p", worker_id=tenure.worker_id) == held  # an answer that got lost is given again
    second, nothing = await owner(db)
    assert nothing == {}
    await workers.fence(db, [tenure.worker_id])
    await partitions.free_of(db, [tenure.worker_id])
    moved = await partitions.acquire(db, pool="p", worker_id=second.worker_id)
    assert len(moved) == 512 and all(moved[p] > held[p] for p in held)
    await workers.forget(db, [tenure.worker_id])
    await partitions.free_of(db, [second.worker_id])
    assert await partitions.acquire(db, pool="p", worker_id=tenure.worker_id) == {}
    assert len(await partitions.acquire(db, pool="p", worker_id=second.worker_id)) == 512


async def test_a_launch_whose_id_is_taken_names_itself_and_writes_nothing(db):
    tenure, epochs = await owner(db)
    session = await db.session()

    def launch() -> Batch:
        execution_id = uuid.uuid4()
        batch = decision(1, execution_id)
        batch.add(
            "launches",
            (execution_id, "same", "t", 7, 1, "[]", 0, None, None, None, "RUNNING", None, None, "parked", None, None),
        )
        batch.epochs = {7: epochs[7]}
        return batch

    await commit(session, tenure, launch())
    second = launch()
    with pytest.raises(Taken) as caught:
        await commit(session, tenure, second)
    assert caught.value.execution_ids == {second.rows["launches"][0][0]}
    assert await decisions(db) == 1
    await session.close()


async def test_the_fence_looks_up_each_partition_by_its_key(db):
    """However many partitions a batch touches, none of the others is read."""
    tenure, epochs = await owner(db)
    session = await db.session(**LANE_SETTINGS)
    query = statement(0)
    chosen = list(epochs)[:100]
    named = {"worker_id": tenure.worker_id, "connection": 0, "pool": "p"}
    named |= {"partitions": chosen, "epochs": [epochs[p] for p in chosen]}
    args = query.args(**named)
    for _ in range(2):
        found = await session.connection.fetchval(f"explain (analyze, format json) {query.sql}", *args)
    [scan] = [n for n in nodes(json.loads(found)[0]["Plan"]) if n.get("Relation Name") == "partitions"]
    assert "Index" in scan["Node Type"] and scan["Actual Loops"] == 100 and scan["Actual Rows"] == 1
    assert scan.get("Rows Removed by Filter", 0) == 0
    await session.close()
