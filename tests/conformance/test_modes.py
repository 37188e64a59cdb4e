"""The same behaviour whatever stays in memory: everything resident, one run, nothing."""

from __future__ import annotations

import asyncio

import pytest

from harvest import RetryPolicy, activity, errors, workflow

MODES = {
    "resident": {},
    "one": {"workflow_cache_size": 1},
    "cold": {"resident_workflows": False},
    "tiny batches": {"max_batch": 2, "commit_lanes": 3, "max_activity_slots": 2},
}
runs: list[int] = []


@activity.defn(local=True)
async def once(n: int) -> int:
    runs.append(n)
    return n


@activity.defn(retry=RetryPolicy(initial=0.01, max_attempts=3))
async def shaky(n: int) -> int:
    if activity.info().attempt < 2:
        raise OSError("again")
    return n


@workflow.defn
async def leaf(n: int) -> int:
    await asyncio.sleep(0.005)
    return n


@workflow.defn
class Mixed:
    def __init__(self) -> None:
        self.heard: list[int] = []

    @workflow.run
    async def run(self, base: int) -> list[int]:
        found = [await once(base + n) for n in range(3)]
        found += await asyncio.gather(shaky(1), leaf(2), workflow.start_activity(shaky, 3, mode="queue"))
        try:
            async with asyncio.timeout(0.02):
                await workflow.receive("never")
        except TimeoutError:
            found.append(-1)
        await workflow.wait_until(lambda: len(self.heard) >= 3)
        return [*found, *self.heard]

    @workflow.signal
    def hear(self, n: int) -> None:
        self.heard.append(n)

    @workflow.update
    async def ask(self, n: int) -> int:
        return n + await shaky(1)

    @workflow.query
    def count(self) -> int:
        return len(self.heard)


@pytest.mark.parametrize("mode", MODES)
async def test_a_bit_of_everything(worker, caller, mode):
    runs.clear()
    async with worker(once, shaky, leaf, Mixed, **MODES[mode]) as running:
        handles = [await caller.start(Mixed, 10 * n, id=f"m{n}") for n in range(12)]
        for handle in handles:
            await handle.signal(Mixed.hear, 1)
        assert await asyncio.gather(*(h.update(Mixed.ask, 5) for h in handles)) == [6] * 12
        for n in (2, 3):
            await asyncio.gather(*(h.signal(Mixed.hear, n) for h in handles))
        for n, handle in enumerate(handles):
            assert await handle.result(timeout=30) == [10 * n, 10 * n + 1, 10 * n + 2, 1, 2, 3, -1, 1, 2, 3]
            assert await handle.query(Mixed.count) == 3
        assert sorted(runs) == sorted(10 * n + k for n in range(12) for k in range(3)), "a local step ran twice"
        assert running.activities.free == running.activities.slots, "a slot leaked"
        assert not running.decider.runs and not running.decider.open_ids, "a closed run is still held"
        assert len(running.decider.timers) < 200


@pytest.mark.parametrize("mode", MODES)
async def test_continue_as_new_keeps_order_and_keys(client, worker, caller, mode):
    """R-7: signals stay in order, and their keys and update ids de-duplicate over all runs of a chain."""

    @workflow.defn
    class Chain:
        def __init__(self) -> None:
            self.updates = 0

        @workflow.run
        async def run(self, seen: list[int], left: int) -> list[int]:
            for _ in range(3):
                seen.append(await workflow.receive("n", int))
                if seen[-1] < 0:
                    return seen
            await asyncio.sleep(0.001)
            if left:
                workflow.continue_as_new(seen, left - 1)
            return seen

        @workflow.update
        def bump(self) -> int:
            self.updates += 1
            return self.updates

    async with worker(Chain, **MODES[mode]):
        handle = await caller.start(Chain, [], 8, id="chain")
        first = await handle.update(Chain.bump, update_id="once")
        for n in range(1, 21):
            for _ in range(2):
                await handle.signal("n", n, idempotency_key=f"k{n}")
        assert await handle.update(Chain.bump, update_id="once") == first
        await handle.signal("n", -1)
        assert await handle.result(timeout=30) == [*range(1, 21), -1]


async def test_results_of_a_predecessors_children_go_to_nobody(client, worker):
    @workflow.defn
    async def slow(n: int) -> int:
        return await workflow.receive("go", int)

    @activity.defn
    async def steady(n: int) -> int:
        await asyncio.sleep(0.05)
        return n

    @workflow.defn
    async def parent(round_: int) -> int:
        workflow.start_child(slow, round_, id=f"slow-{round_}", parent_close="abandon" if round_ == 1 else "terminate")
        await asyncio.sleep(0.005)
        if round_ < 3:
            workflow.continue_as_new(round_ + 1)
        return await steady(7)

    async with worker(slow, steady, parent):
        handle = await client.start(parent, 1, id="p")
        while not [run async for run in client.list(prefix="slow-1")]:
            await asyncio.sleep(0.005)
        await client.handle("slow-1").signal("go", 99)
        assert await handle.result(timeout=20) == 7
        assert await client.handle("slow-1").result(timeout=20) == 99
        with pytest.raises(errors.WorkflowFailedError):
            await client.handle("slow-2").result(timeout=20)


async def test_a_child_can_be_signalled_the_moment_it_is_started(client, worker):
    @workflow.defn
    async def kid() -> str:
        return await workflow.receive("word", str)

    @workflow.defn
    async def parent() -> str:
        handle = workflow.start_child(kid)
        await handle.signal("word", "hi")
        return await handle

    async with worker(kid, parent):
        assert await client.execute(parent, id="p") == "hi"


async def test_search_attributes_of_the_last_decision_count(client, worker):
    @workflow.defn
    async def tags(rounds: int) -> None:
        workflow.upsert_search_attributes(a=rounds)
        workflow.upsert_search_attributes(b="x")
        if rounds:
            workflow.continue_as_new(rounds - 1)

    async with worker(tags):
        await client.execute(tags, 0, id="at-once")
        await client.execute(tags, 1, id="chain")
        for name in ("at-once", "chain"):
            described = await client.handle(name).describe()
            assert described.state == "COMPLETED"
            assert described.search_attributes == {"a": 0, "b": "x"}
        assert [r.workflow_id async for r in client.list(search_attributes={"b": "x"}, state="COMPLETED")] == [
            "chain",
            "at-once",
        ]


async def test_a_delayed_run_waits_whatever_is_asked_of_it(client, worker, caller):
    @workflow.defn
    class Later:
        @workflow.run
        async def run(self) -> str:
            return "ran"

        @workflow.query
        def ask(self) -> int:
            return 1

    async with worker(Later):
        handle = await caller.start(Later, id="later", delay=3600)
        with pytest.raises(errors.QueryFailed, match="delayed"):
            await handle.query(Later.ask)
        assert (await handle.result_snapshot()).state == "RUNNING"
        await handle.cancel("not needed")
        with pytest.raises(errors.WorkflowFailedError) as caught:
            await handle.result(timeout=20)
        assert caught.value.state == "CANCELLED"


async def test_callers_get_their_time_out(worker, caller):
    @workflow.defn
    class Mute:
        @workflow.run
        async def run(self) -> None:
            await workflow.receive("never")

        @workflow.update
        async def never(self) -> None:
            await workflow.wait_until(lambda: False)

    async with worker(Mute):
        handle = await caller.start(Mute, id="mute")
        with pytest.raises(errors.NoAnswer):
            await handle.update(Mute.never, timeout=0.2)
        update = asyncio.create_task(handle.update(Mute.never, timeout=20))
        await asyncio.sleep(0.05)
        await handle.terminate("end")
        with pytest.raises(errors.UpdateFailed, match="TERMINATED"):
            await update


async def test_an_update_is_applied_once_over_a_change_of_owner(client, worker):
    applied: list[int] = []
    admitted = asyncio.Event()

    @activity.defn(local=True)
    async def note() -> None:
        applied.append(1)
        admitted.set()

    @workflow.defn
    class Slow:
        @workflow.run
        async def run(self) -> None:
            await workflow.receive("end")

        @workflow.update
        async def work(self) -> str:
            await note()
            await asyncio.sleep(0.5)
            return "done"

    async with worker(Slow, note):
        handle = await client.start(Slow, id="slow")
        update = asyncio.create_task(handle.update(Slow.work, timeout=30))
        await admitted.wait()
        await asyncio.sleep(0.05)
    async with worker(Slow, note):
        assert await update == "done"
    assert applied == [1]


async def test_a_run_may_write_to_itself(client, worker, caller):
    @workflow.defn
    async def selfish(rounds: int) -> int:
        me = workflow.external(workflow.info().workflow_id)
        sent = asyncio.ensure_future(me.signal("n", rounds))
        if rounds:
            await asyncio.sleep(0)
            workflow.continue_as_new(rounds - 1)
        await sent
        return sum([await workflow.receive("n", int) for _ in range(3)])

    async with worker(selfish):
        assert await caller.execute(selfish, 2, id="s") == 3


async def test_the_same_keys_from_two_clients(client, remote, worker):
    @workflow.defn
    async def collect(count: int) -> list[int]:
        return sorted([await workflow.receive("n", int) for _ in range(count)])

    async with worker(collect):
        handle = await client.start(collect, 300, id="c")
        handles = [handle, remote.handle("c")]
        keyed = [h.signal("n", n, idempotency_key=f"k{n}") for n in range(200) for h in handles]
        unkeyed = [handles[n % 2].signal("n", n) for n in range(200, 300)]
        await asyncio.gather(*keyed, *unkeyed)
        assert await handle.result(timeout=30) == list(range(300))
