"""E-3 to E-7 through the public surface: SQL over one entity and over a whole type."""

from __future__ import annotations

import asyncio
import json

import pytest
from harvest.entity_sql import SqlError, SqlOverrun, SqlRefused
from pydantic import BaseModel

import harvest
from harvest import Worker, WorkerConfig, activity, entity
from harvest.errors import ConfigError, EntityNotFound, EntitySqlOff, NoAnswer, QueryTimeout, UnknownWorkflowError
from harvest.hub.queries import Query
from harvest.ids import new_id
from harvest.operations.entity_sql import ONE, ask


class Plane(BaseModel):
    carrier: str = ""
    legs: list[int] = []
    miles: float = 0.0
    pad: str = ""


@activity.defn
async def check(n: int) -> int:
    return n


@entity.defn(indexes=["carrier"])
class Aeroplane:
    state: Plane

    @entity.operation
    def fly(self, carrier: str, miles: float) -> int:
        self.state.carrier = carrier
        self.state.legs.append(int(miles))
        self.state.miles += miles
        return len(self.state.legs)

    @entity.operation
    async def wait(self, seconds: float) -> None:
        self.state.carrier = "half done"
        await asyncio.sleep(seconds)
        self.state.carrier = "done"

    @entity.operation
    def load(self, size: int) -> None:
        self.state.pad = "x" * size

    @entity.operation
    def scrap(self) -> None:
        entity.delete()


LEGS = "SELECT value FROM entity, json_each(state, '$.legs')"


@pytest.fixture
def sql_worker(tmp_path):
    made = 0

    def make(client, *, definitions=(Aeroplane, check), **config) -> Worker:
        nonlocal made
        made += 1
        config.setdefault("owner_disk_cache", tmp_path / f"cache-{made}")
        config.setdefault("owner_entity_sql", True)
        return Worker(client, definitions=definitions, config=WorkerConfig(**config))

    return make


async def test_one_entity_from_memory_disk_and_history(client, remote, sql_worker):
    async with sql_worker(client, workflow_cache_size=1) as worker:
        for key in ("N1", "N2", "N3"):
            for miles in (100.5, 200):
                await client.entity(Aeroplane, key).call(Aeroplane.fly, "AA", miles)
        rows = await client.entity(Aeroplane, "N3").sql(LEGS)
        assert (list(rows), rows.source, rows.columns) == ([(100,), (200,)], "resident", ["value"])
        first = await client.entity(Aeroplane, "N1").sql(LEGS)
        second = await client.entity(Aeroplane, "N1").sql(LEGS)
        assert (first.source, second.source) == ("history", "disk")
        assert first.rows == second.rows == rows.rows and first.event_id == second.event_id
        far = await remote.entity("Aeroplane", "N1").sql("SELECT state ->> '$.miles', event_id, key, type FROM entity")
        assert far.rows == [(300.5, first.event_id, "N1", "Aeroplane")] and far.source == "disk"
        # An operation makes the file stale, and an erased file is only a miss.
        await client.entity(Aeroplane, "N1").call(Aeroplane.fly, "UA", 1)
        await client.entity(Aeroplane, "N2").call(Aeroplane.fly, "UA", 1)
        again = await client.entity(Aeroplane, "N1").sql(LEGS)
        assert (again.source, len(again)) == ("history", 3) and again.event_id > first.event_id
        for path in worker.cache.directory.glob("*.sealed"):
            assert b"carrier" not in path.read_bytes() and b"N1" not in path.read_bytes()
            path.unlink()
        assert (await client.entity(Aeroplane, "N1").sql(LEGS)).source == "history"
        assert worker.units["default"].shelf.outcomes["Aeroplane", "hit"] == 2


async def test_what_is_not_committed_is_not_seen(client, remote, sql_worker):
    async with sql_worker(client):
        plane = client.entity(Aeroplane, "N1")
        await plane.call(Aeroplane.fly, "AA", 5)
        waiting = asyncio.create_task(plane.call(Aeroplane.wait, 0.2))
        while (await remote.handle(plane.id).describe()).due_at is None:
            await asyncio.sleep(0.01)
        assert (await plane.sql("SELECT state ->> '$.carrier' FROM entity")).rows == [("AA",)]
        await waiting
        assert (await plane.sql("SELECT state ->> '$.carrier' FROM entity")).rows == [("done",)]


async def test_warm_disk_and_cold_answers_are_equal(client, remote, dsn, sql_worker):
    """E-7: a worker without the tenure reads history, and writes no file."""
    question = "SELECT state, event_id, updated_at FROM entity"
    async with sql_worker(client) as owner:
        for n in range(120):
            await client.entity(Aeroplane, "N1").call(Aeroplane.fly, "AA", n)
        warm = await client.entity(Aeroplane, "N1").sql(question)
        async with harvest.connect(dsn) as other:
            idle = sql_worker(other, max_workflow_slots=0)
            async with idle:
                cold = await other.entity(Aeroplane, "N1").sql(question)
                assert not list(idle.cache.directory.glob("*.sealed"))
        assert (warm.source, cold.source) == ("resident", "history") and warm.rows == cold.rows
        owner.decider.let_go(owner.decider.runs[(await client.entity(Aeroplane, "N1").describe()).execution_id])
        assert (await client.entity(Aeroplane, "N1").sql(question)).source == "history"
        disk = await client.entity(Aeroplane, "N1").sql(question)
        assert disk.source == "disk" and disk.rows == warm.rows


async def test_mistakes_and_bad_input(client, remote, sql_worker):
    async with sql_worker(client):
        await client.entity(Aeroplane, "N1").call(Aeroplane.fly, "AA", 1)
        for where in (client, remote):
            plane = where.entity("Aeroplane", "N1")
            with pytest.raises(SqlError, match=r"state ->> '\$\.carier'") as caught:
                await plane.sql("SELECT key,\n carier FROM entity")
            assert (caught.value.line, caught.value.column) == (2, 2)
            with pytest.raises(SqlRefused, match="only reads"):
                await plane.sql("DELETE FROM entity")
            with pytest.raises(SqlOverrun) as overrun:
                await plane.sql("WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT n FROM t")
            assert overrun.value.limit == "rows"
            with pytest.raises(SqlError, match="no value of SQL"):
                await plane.sql("SELECT ?", (object(),))
            with pytest.raises(EntityNotFound, match="N9"):
                await where.entity("Aeroplane", "N9").sql("SELECT 1")
            assert (await plane.sql("SELECT ?, x'00ff', 1e999", ("ü",))).plain() == [["ü", {"base64": "AP8="}, "Infinity"]]
            with pytest.raises(SqlRefused):
                await where.query_entities_sql("Aeroplane", "SELECT 1")


async def test_the_switches(client, dsn, worker, tmp_path):
    with pytest.raises(ConfigError, match="owner_entity_sql: needs owner_disk_cache"):
        WorkerConfig(owner_entity_sql=True)
    with pytest.raises(ConfigError, match="sticky_timeout above zero"):
        WorkerConfig(owner_disk_cache=tmp_path, sticky_timeout=0)
    with pytest.raises(ConfigError, match="owner_mode"):
        WorkerConfig(owner_disk_cache=tmp_path, owner_mode=False)
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ConfigError, match="owner_disk_cache"):
        async with worker(Aeroplane, owner_disk_cache=file):
            pass
    async with worker(Aeroplane, owner_disk_cache=tmp_path / "c") as first:
        config = first.effective_config()
        assert config["owner_disk_cache"] is True and config["owner_entity_sql"] is False
        assert str(tmp_path) not in json.dumps(config)
        async with harvest.connect(dsn) as other:
            with pytest.raises(ConfigError, match="in use by process"):
                async with Worker(other, definitions=[Aeroplane], config=WorkerConfig(owner_disk_cache=tmp_path / "c")):
                    pass
        await client.entity(Aeroplane, "N1").call(Aeroplane.fly, "AA", 1)
        with pytest.raises(QueryTimeout, match="owner_entity_sql"):
            await client.entity(Aeroplane, "N1").sql("SELECT 1", timeout=0.2)


async def fill(client, count: int) -> dict[str, tuple[str, float]]:
    """Planes of three carriers; what each has flown."""
    flown = {f"N{n:03}": ("ABC"[n % 3], float(n * 10)) for n in range(count)}
    await asyncio.gather(*(client.entity(Aeroplane, key).call(Aeroplane.fly, *each) for key, each in flown.items()))
    return flown


async def test_a_whole_type_over_several_owners(client, remote, dsn, sql_worker):
    async with harvest.connect(dsn) as second, sql_worker(client), sql_worker(second) as peer:
        while not peer.keeper.shares["default"].epochs:
            await asyncio.sleep(0.05)
        flown = await fill(remote, 60)
        for where in (client, second, remote):
            rows = await where.query_entities_sql(
                Aeroplane,
                "SELECT state ->> '$.carrier' AS carrier, count(*) AS planes, avg(state ->> '$.miles') AS miles"
                " FROM entity GROUP BY carrier ORDER BY carrier",
            )
            wanted = []
            for carrier in "ABC":
                miles = [m for c, m in flown.values() if c == carrier]
                wanted.append((carrier, len(miles), sum(miles) / len(miles)))
            assert rows.rows == wanted and rows.complete
            assert len({each.worker_id for each in rows.freshness}) == 2
            assert sum(each.entities for each in rows.freshness) == 60
        plain = await remote.query_entities_sql("Aeroplane", "SELECT key, state ->> '$.miles' FROM entity WHERE key < 'N010'")
        assert sorted(plain) == [(k, m) for k, (_, m) in flown.items() if k < "N010"]
        whole = await remote.query_entities_sql(Aeroplane, "SELECT state FROM entity WHERE key = ?", ("N001",))
        assert json.loads(whole.rows[0][0])["carrier"] == "B"


async def test_the_table_follows_commits_deletes_and_failover(client, remote, dsn, sql_worker):
    count = "SELECT count(*), sum(state ->> '$.miles') FROM entity"
    async with sql_worker(client):
        await fill(client, 30)
        assert (await remote.query_entities_sql(Aeroplane, count)).rows == [(30, 4350.0)]
        for n in range(10):
            await client.entity(Aeroplane, "N001").call(Aeroplane.fly, "A", 1)
            assert (await client.query_entities_sql(Aeroplane, count)).rows == [(30, 4351.0 + n)]
        await client.entity(Aeroplane, "N002").call(Aeroplane.scrap)
        await client.entity(Aeroplane, "N003").delete()
        assert (await client.query_entities_sql(Aeroplane, count)).rows == [(28, 4310.0)]
        async with harvest.connect(dsn) as second, sql_worker(second) as peer:
            while not peer.keeper.shares["default"].epochs:
                await asyncio.sleep(0.05)
            assert (await remote.query_entities_sql(Aeroplane, count)).rows == [(28, 4310.0)]
            await remote.entity(Aeroplane, "N010").call(Aeroplane.fly, "A", 1000)
            token = await remote.entity(Aeroplane, "N010").token()
            assert (await remote.query_entities_sql(Aeroplane, count, after=[token])).rows == [(28, 5310.0)]
        assert (await remote.query_entities_sql(Aeroplane, count, after=[token])).rows == [(28, 5310.0)]


async def test_who_cannot_answer_is_named(client, remote, dsn, worker, sql_worker):
    async with sql_worker(client):
        await fill(client, 30)
    async with worker(Aeroplane, check):  # owns everything, and answers no SQL
        rows = await remote.query_entities_sql(Aeroplane, "SELECT count(*) FROM entity", timeout=0.3)
        assert rows.rows == [(0,)] and not rows.complete
        missing = {p for each in rows.unanswered for p in each.partitions}
        found = await remote.db.fetch(Query("t", "select distinct partition from entity_state"))
        assert missing == {row["partition"] for row in found}
        assert "no owner" in rows.unanswered[0].reason
    async with sql_worker(client, entity_table_bytes=100):
        rows = await remote.query_entities_sql(Aeroplane, "SELECT count(*) FROM entity", timeout=2)
        assert not rows.complete and "the most is 100" in rows.unanswered[0].reason
    async with sql_worker(client):
        token = await client.entity(Aeroplane, "N001").token()
        ahead = type(token)(token.type, token.key, token.execution_id, token.event_id + 100)
        rows = await remote.query_entities_sql(Aeroplane, "SELECT key FROM entity", after=[ahead], timeout=0.5)
        assert not rows.complete and "commit token" in rows.unanswered[0].reason


async def test_large_answers_travel(client, remote, sql_worker):
    async with sql_worker(client):
        await client.entity(Aeroplane, "N1").call(Aeroplane.load, 3_000_000)
        for where in (client, remote):
            rows = await where.entity(Aeroplane, "N1").sql("SELECT length(state ->> '$.pad'), lower(state), state FROM entity")
            assert rows.rows[0][0] == 3_000_000 and len(rows.rows[0][2]) > 3_000_000
        assert await remote.db.fetch(Query("t", "select count(*) as n from answers")) == [(0,)]


async def test_a_type_that_nobody_has(client, remote, sql_worker):
    async with sql_worker(client):
        with pytest.raises(UnknownWorkflowError, match="entity type 'Nothing'"):
            await remote.query_entities_sql("Nothing", "SELECT count(*) FROM entity")
        assert (await remote.query_entities_sql(Aeroplane, "SELECT count(*) FROM entity")).rows == [(0,)]
        with pytest.raises(UnknownWorkflowError):
            await client.site.sql[0].part("Nothing", "SELECT 1 FROM entity", [], [], 1)
        with pytest.raises(EntitySqlOff):
            raise EntitySqlOff("named")


async def test_the_worker_keeps_its_leases_and_answers_while_sql_runs_wild(client, remote, sql_worker):
    wild = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT count(*) FROM t a, t b, t c"
    async with sql_worker(client) as worker:
        plane = client.entity(Aeroplane, "N1")
        await plane.call(Aeroplane.fly, "AA", 1)
        storm = [asyncio.create_task(plane.sql(wild)) for _ in range(8)]
        for n in range(50):
            assert await plane.call(Aeroplane.fly, "AA", 1) == n + 2
        assert (await remote.entity(Aeroplane, "N1").state()).miles == 51
        for task in storm:
            with pytest.raises(SqlError):
                await task
        assert worker.keeper.tenures == 1
        assert (await plane.sql("SELECT 1")).rows == [(1,)]


SLOW = "SELECT max(n.value) FROM entity, json_each('[' || printf('%.*c', 400000, '1') || ']') n, json_each('[1,2,3,4,5,6]')"


async def peers(*workers) -> None:
    """Until each owns something."""
    while not all(worker.keeper.shares["default"].epochs for worker in workers):
        await asyncio.sleep(0.02)


async def test_complete_answers_count_each_entity_once_while_ownership_moves(client, remote, dsn, sql_worker):
    question = "SELECT key FROM entity"
    async with sql_worker(client), harvest.connect(dsn) as second:
        await fill(client, 60)
        for _ in range(2):
            asking = [asyncio.create_task(remote.query_entities_sql(Aeroplane, SLOW)) for _ in range(2)]
            asking += [asyncio.create_task(remote.query_entities_sql(Aeroplane, question)) for _ in range(3)]
            async with sql_worker(second) as peer:
                asking += [asyncio.create_task(second.query_entities_sql(Aeroplane, question)) for _ in range(3)]
                await peers(peer)
                asking += [asyncio.create_task(remote.query_entities_sql(Aeroplane, question)) for _ in range(3)]
            answers = await asyncio.gather(*asking)
            whole = [a for a in answers if a.complete and a.columns == ["key"]]
            assert whole and all(len(a) == 60 == len(set(a)) for a in whole)
            assert all(sum(each.entities for each in a.freshness) == 60 for a in whole)


async def test_a_worker_that_stops_is_not_the_querys_fault(client, remote, dsn, sql_worker):
    async with sql_worker(client) as first, harvest.connect(dsn) as second:
        await fill(client, 30)
        for _ in range(2):
            async with sql_worker(second) as peer:
                await peers(first, peer)
                asking = [remote.query_entities_sql(Aeroplane, "SELECT count(*) FROM entity") for _ in range(10)]
                asking += [remote.entity(Aeroplane, f"N{n:03}").sql("SELECT 1") for n in range(10)]
                work = asyncio.gather(*asking)
                await asyncio.sleep(0.01)
            answers = await work
            assert all(a.rows == [(30,)] for a in answers[:10] if a.complete)
            assert all(a.rows == [(1,)] for a in answers[10:])


async def test_a_token_of_an_earlier_life_is_met(client, sql_worker):
    async with sql_worker(client):
        plane = client.entity(Aeroplane, "N1")
        for _ in range(5):
            await plane.call(Aeroplane.fly, "AA", 1)
        old = await plane.token()
        await plane.delete()
        await plane.call(Aeroplane.fly, "AA", 7)
        rows = await client.query_entities_sql(Aeroplane, "SELECT state ->> '$.miles' FROM entity", after=old)
        assert rows.complete and rows.rows == [(7.0,)]


async def test_two_workers_on_one_client(client, remote, sql_worker):
    async with sql_worker(client) as one, sql_worker(client) as two:
        await peers(one, two)
        await fill(client, 40)
        for where in (client, remote):
            rows = await where.query_entities_sql(Aeroplane, "SELECT count(*) FROM entity")
            assert rows.complete and rows.rows == [(40,)]
            assert (await where.entity(Aeroplane, "N005").sql("SELECT key FROM entity")).rows == [("N005",)]


async def test_one_state_that_cannot_be_read_hides_its_partition_only(client, remote, sql_worker):
    async with sql_worker(client):
        await fill(client, 12)
        newer = "update decisions set events = replace(events::text, '\"version\":1', '\"version\":9')::json"
        await remote.db.fetch(
            Query("t", newer + " where execution_id = (select execution_id from entity_state where key = 'N001')")
        )
        rows = await client.query_entities_sql(Aeroplane, "SELECT count(*) FROM entity")
        assert not rows.complete and rows.rows[0][0] in (10, 11)
        assert "Aeroplane 'N001' cannot be read" in rows.unanswered[0].reason


async def test_nobody_waits_for_a_worker_that_is_gone(remote):
    request = {"type": "Aeroplane", "key": "N1", "sql": "SELECT 1", "params": []}
    async with asyncio.timeout(30):
        with pytest.raises(NoAnswer, match="is gone"):
            await ask(remote.site, new_id(), ONE, request, 600.0)


@pytest.mark.parametrize("params", [[2**70], ["\ud800"], {"a": 2**70}, {"\ud800": 1}])
async def test_parameters_that_sql_has_not_are_named_before_anything_is_sent(remote, sql_worker, client, params):
    async with sql_worker(client):
        await fill(client, 1)
        with pytest.raises(SqlError, match="parameter"):
            await remote.query_entities_sql(Aeroplane, "SELECT 1", params)
        with pytest.raises(SqlError, match="parameter"):
            await remote.entity(Aeroplane, "N000").sql("SELECT 1", params)
