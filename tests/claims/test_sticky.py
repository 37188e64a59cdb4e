"""Sticky mode: pins, claim order, what a hit reads, and what takes a pin away (S-1 to S-8, W-1 to W-3)."""

from __future__ import annotations

import asyncio
import json
import uuid

import pytest

import harvest
from harvest import Worker, WorkerConfig, activity, errors, workflow
from harvest.hub import workers, workflow_tasks
from harvest.hub.queries import Query, queries
from tests.hub.test_schema import nodes


@workflow.defn
class Counter:
    def __init__(self) -> None:
        self.seen: list[int] = []

    @workflow.run
    async def run(self, until: int) -> list[int]:
        await workflow.wait_until(lambda: len(self.seen) >= until)
        return self.seen

    @workflow.signal
    def put(self, n: int) -> None:
        self.seen.append(n)

    @workflow.query
    def count(self) -> int:
        return len(self.seen)


@pytest.fixture
def hub_mode() -> str:
    return "sticky"


def sticky(client, **config) -> Worker:
    return Worker(client, definitions=[Counter], config=WorkerConfig(**config))


async def decisions(client, workflow_id: str) -> list[tuple]:
    sql = (
        "select d.decision, d.worker_id, d.scheduled, d.replay_mode from decisions d join executions e using (execution_id)"
        f" where e.workflow_id = '{workflow_id}' order by d.decision"
    )
    return [tuple(row.values()) for row in await client.db.fetch(Query("t", sql))]


async def idle(claimer) -> None:
    """It claims no more, and nothing that it asked for is still on its way."""
    claimer.active = False
    async with claimer._one_at_a_time:
        pass


async def parked(client, workflow_id: str, decisions: int) -> None:
    sql = (
        "select 1 from workflow_tasks t join executions e using (execution_id)"
        f" where e.workflow_id = '{workflow_id}' and t.state = 'parked'"
        f" and (select max(decision) from decisions d where d.execution_id = e.execution_id) >= {decisions}"
    )
    while not await client.db.fetch(Query("t", sql)):
        await asyncio.sleep(0.01)


async def test_follow_ups_go_to_the_worker_that_has_the_run(client, remote):
    """S-2, W-2: of two workers one keeps the run, and each of its decisions after the first is warm."""
    async with sticky(client) as one, sticky(remote) as two:
        handle = await client.start(Counter, 8, id="c")
        for n in range(8):
            await parked(client, "c", n + 1)
            await handle.signal(Counter.put, n)
        assert await handle.result(timeout=20) == list(range(8))
        taken = await decisions(client, "c")
        assert len({worker for _, worker, _, _ in taken}) == 1
        assert [(s, m) for _, _, s, m in taken] == [("normal", "first")] + [("sticky", "warm")] * 8
        mine, other = (one, two) if taken[0][1] == one.keeper.worker_id else (two, one)
        # A poke that comes while a decision parks makes the run due once more: a claim may find nothing to decide.
        assert mine.units["default"].claimer.counts["sticky_hit_expected"] >= 8
        assert other.units["default"].claimer.claimed == 0


async def test_a_pin_that_runs_out_opens_the_task(client, remote):
    """S-2, W-3, W-5: the window passes, another worker replays cold, and history says which window it was."""
    async with sticky(client, sticky_timeout=0.3) as one:
        handle = await client.start(Counter, 2, id="c")
        await parked(client, "c", 1)
        await idle(one.units["default"].claimer)  # too busy to claim
        async with sticky(remote, sticky_timeout=5) as two:
            await handle.signal(Counter.put, 1)
            await parked(client, "c", 2)
            taken = await decisions(client, "c")
            assert taken[1][1:] == (two.keeper.worker_id, "expired", "forced")
            assert two.units["default"].decider.residents.forced == 1
            one.units["default"].claimer.active = True
            await handle.signal(Counter.put, 2)
            assert await handle.result(timeout=20) == [1, 2]


async def test_what_another_worker_decided_makes_memory_stale(client, remote):
    """S-3: the run comes back to a worker whose copy is older than history."""
    async with sticky(client, sticky_timeout=0.2) as one, sticky(remote, sticky_timeout=0.2) as two:
        first, second = one.units["default"].claimer, two.units["default"].claimer
        await idle(second)
        handle = await client.start(Counter, 3, id="c")
        for n, (on, off) in enumerate([(second, first), (first, second), (first, second)], 1):
            await parked(client, "c", n)
            await idle(off)
            on.active = True
            await handle.signal(Counter.put, n)
            if n < 3:
                await parked(client, "c", n + 1)
        assert await handle.result(timeout=20) == [1, 2, 3]
        assert [mode for *_, mode in await decisions(client, "c")] == ["first", "forced", "forced", "warm"]


@pytest.mark.parametrize("how", ["stopped", "draining", "fenced"])
async def test_a_holder_that_is_gone_loses_its_pins_at_once(client, remote, how):
    """S-2, S-5."""
    one = sticky(client, sticky_timeout=600)
    await one.__aenter__()
    handle = await client.start(Counter, 1, id="c")
    await parked(client, "c", 1)
    async with sticky(remote) as two:
        if how == "stopped":
            await one.stop()
        elif how == "draining":
            await one.units["default"].claimer.stop()
            await one.keeper.hand_over()
        else:
            await idle(one.units["default"].claimer)
            one.keeper.stopping.set()
            one.keeper.nudge()
            await one.keeper.lease.stop()  # its session ends, as that of a dead process does
            await two.keeper.run_once()
        await handle.signal(Counter.put, 5)
        assert await handle.result(timeout=20) == [5]
        assert (await decisions(client, "c"))[-1][1:] == (two.keeper.worker_id, "normal", "forced")
    await one.stop()


async def test_without_a_window_nothing_is_pinned_or_kept(client):
    """S-1."""
    async with sticky(client, sticky_timeout=0) as one:
        handle = await client.start(Counter, 2, id="c")
        for n in range(2):
            await parked(client, "c", n + 1)
            assert await client.db.fetch(Query("t", "select 1 from workflow_tasks where sticky_worker_id is null"))
            await handle.signal(Counter.put, n)
        assert await handle.result(timeout=20) == [0, 1]
        assert [mode for *_, mode in await decisions(client, "c")] == ["first", "cold", "cold"]
        config = one.effective_config()
        assert not config["resident_workflows"] and not config["sticky_cache_enabled"]


async def test_eviction_costs_a_cold_replay_only(client):
    """S-4, W-1, W-3."""
    async with sticky(client, workflow_cache_size=1) as one:
        handles = [await client.start(Counter, 2, id=f"c{n}") for n in range(3)]
        for n in range(2):
            for handle in handles:
                await parked(client, handle.id, n + 1)
                await handle.signal(Counter.put, n)
        assert [await h.result(timeout=20) for h in handles] == [[0, 1]] * 3
        figures = json.loads(one._figures())
        assert figures["eviction_count"] > 0 and figures["forced_cold_replay_count"] == figures["miss_count"] > 0


async def test_a_failed_decision_leaves_the_cache(client):
    """S-7."""
    broken = True

    @workflow.defn
    async def shaky() -> str:
        await workflow.receive("go")
        if broken:
            await asyncio.get_running_loop().run_in_executor(None, print)
        return "fine"

    async with Worker(client, definitions=[shaky]):
        handle = await client.start(shaky, id="s")
        await parked(client, "s", 1)
        await handle.signal("go")
        while not (await handle.describe()).strikes:
            await asyncio.sleep(0.01)
        broken = False
        assert await handle.result(timeout=20) == "fine"
        assert [mode for *_, mode in await decisions(client, "s")] == ["first", "forced"]


async def test_another_build_is_not_eligible(client, remote):
    """S-8: a pinned run waits for its build, whoever is free."""
    async with sticky(remote, build_id="v2") as other:
        handle = await client.start(Counter, 1, id="c", build_id="v1")
        await handle.signal(Counter.put, 1)
        await other.units["default"].claimer.run_once()
        assert other.units["default"].claimer.claimed == 0
        async with sticky(client, build_id="v1"):
            assert await handle.result(timeout=20) == [1]


async def test_a_timer_of_a_run_in_memory_is_exact(client):
    @workflow.defn
    async def naps() -> float:
        before = workflow.now()
        await asyncio.sleep(0.3)
        return (workflow.now() - before).total_seconds()

    async with Worker(client, definitions=[naps]):
        assert 0.3 <= await client.execute(naps, id="n") < 0.45


async def test_a_query_is_answered_by_who_has_the_run(client, remote):
    async with sticky(client) as one, sticky(remote) as two:
        handle = await client.start(Counter, 2, id="c")
        await parked(client, "c", 1)
        await handle.signal(Counter.put, 1)
        assert await remote.handle("c").query(Counter.count) == 1
        assert await client.handle("c").query(Counter.count) == 1
        await handle.signal(Counter.put, 2)
        await handle.result(timeout=20)
        assert await remote.handle("c").query(Counter.count) == 2
        assert one.units["default"].claims.held == two.units["default"].claims.held == {}


# --- the claim itself


async def member(db, pool: str = "p") -> uuid.UUID:
    worker_id = uuid.uuid4()
    new = workers.Registration(worker_id, pool, [pool], "b", worker_id.int % 10**9, 10, "h", 1, "{}", 1, True, 10)
    await workers.register(db, new)
    return worker_id


ROW = (
    "insert into workflow_tasks"
    " (execution_id, pool, partition, state, due_at, priority, fresh, sticky_worker_id, sticky_until, sticky_window)"
    " values (:id::uuid, 'p', 1, 'pending', hub_now() + :due::float8 * interval '1 s', :priority::int2, :fresh::bool,"
    " :pin::uuid, hub_now() + :until::float8 * interval '1 s', 5)"
)


async def put(db, *, due=-1.0, priority=0, fresh=False, pin=None, until=None) -> uuid.UUID:
    made = uuid.uuid4()
    await db.fetch(Query("t", ROW), id=made, due=due, priority=priority, fresh=fresh, pin=pin, until=until)
    return made


async def test_claim_order(client):
    """S-6: own pins, then priority, then due time, a new start as if due 30 s later; pins of others and the future are left."""
    me, other = await member(client.db), await member(client.db)
    later = await put(client.db, due=-5)
    new = await put(client.db, due=-20, fresh=True)
    old_start = await put(client.db, due=-60, fresh=True)
    soon = await put(client.db, due=-10)
    urgent = await put(client.db, due=-1, priority=-5)
    mine = await put(client.db, due=-0.5, pin=me, until=60, priority=3)
    open_again = await put(client.db, due=-8, pin=other, until=-2)
    lazy = await put(client.db, due=-100, priority=9)
    for hidden in ({"due": 30}, {"pin": other, "until": 60}, {"due": 30, "pin": me, "until": 5}):
        await put(client.db, **hidden)
    order = [mine, urgent, old_start, soon, later, open_again, new, lazy]
    for expected in order:
        [row] = await workflow_tasks.claim(client.db, pool="p", worker_id=me, size=1)
        assert row["execution_id"] == expected, order.index(row["execution_id"])
    assert not await workflow_tasks.claim(client.db, pool="p", worker_id=me, size=10)


async def test_two_claimers_never_share(client):
    one, two = await member(client.db), await member(client.db)
    made = [await put(client.db) for _ in range(60)]
    rounds = await asyncio.gather(
        *(workflow_tasks.claim(client.db, pool="p", worker_id=(one, two)[n % 2], size=5) for n in range(12))
    )
    found = [row["execution_id"] for rows in rounds for row in rows]
    assert len(found) == len(set(found)) and set(found) <= set(made)


@pytest.mark.timeout(180)
async def test_a_claim_costs_the_same_at_any_backlog(client):
    """S-6: the pages that a claim touches do not grow with what waits: new starts, due tasks, pins of others, far timers."""
    me, other = await member(client.db), await member(client.db)
    fill = (
        "insert into workflow_tasks"
        " (execution_id, pool, partition, state, due_at, priority, fresh, sticky_worker_id, sticky_until)"
        " select gen_random_uuid(), 'p', n % 512, 'pending', hub_now() + ((n % 4 = 3)::int * 3600 - n % 1000) * interval '1 s',"
        " n % 3, n % 2 = 0, case when n % 5 = 0 then :other::uuid end, case when n % 5 = 0 then hub_now() + interval '1 h' end"
        " from generate_series(1, :count::int) n"
    )
    pages = []
    session = await client.db.session(timeout=120)
    for count in (10_000, 190_000):
        await session.fetch(Query("t", fill), other=other, count=count)
        await session.connection.execute("vacuum analyze workflow_tasks")
        query = queries("workflow_tasks")["claim"]
        async with session.connection.transaction():
            args = query.args(pool="p", worker_id=me, size=50)
            found = await session.connection.fetchval(f"explain (analyze, buffers, format json) {query.sql}", *args)
            await session.connection.execute("savepoint s")
        plan = json.loads(found)[0]["Plan"]
        assert not [n for n in nodes(plan) if n["Node Type"] == "Seq Scan" and n["Relation Name"] == "workflow_tasks"]
        pages.append(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
    assert pages[1] < 2.5 * pages[0], pages
    await session.close()


async def test_owner_mode_lets_no_claim_through(client):
    """O-8: the guard, whatever code sends the claim."""
    me = await member(client.db)
    made = await put(client.db)
    [row] = await workflow_tasks.claim(client.db, pool="p", worker_id=me, size=1)
    assert row["execution_id"] == made
    async with Worker(client, definitions=[Counter]):
        await client.enable_owner_mode()
    crude = Query("t", "update workflow_tasks set state = 'running', worker_id = gen_random_uuid() returning 1 as one")
    assert not await client.db.fetch(crude)
    assert not await workflow_tasks.claim(client.db, pool="p", worker_id=me, size=1)


async def test_what_is_refused(client, dsn):
    @activity.defn
    async def extra() -> None: ...

    with pytest.raises(errors.OwnerModeRefused, match="no live worker"):
        await client.enable_owner_mode()
    async with (
        harvest.connect(dsn) as second,
        Worker(client, definitions=[Counter]) as one,
        Worker(second, definitions=[Counter, extra]) as two,
        Worker(client, definitions=[Counter], queue="q", config=WorkerConfig(owner_mode=False)) as three,
    ):
        with pytest.raises(errors.OwnerModeRefused) as caught:
            await client.enable_owner_mode()
        text = str(caught.value)
        assert len(caught.value.reasons) == 2 and "activities extra" in text and "owner mode off" in text
        assert str(three.keeper.worker_id) in text and str(one.keeper.worker_id) in text
        await two.stop()
        await three.stop()
        assert (await client.enable_owner_mode()).changed
        assert not (await client.enable_owner_mode()).changed
        assert (await client.disable_owner_mode()).changed
