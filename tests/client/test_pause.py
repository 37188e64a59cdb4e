"""A paused run ingests nothing, its deadlines stand still, and it ends only by force."""

from __future__ import annotations

import asyncio

import pytest

from harvest import RetryPolicy, activity, errors, workflow
from tests.client.test_attempts import AT_ONCE, Trader, reach


async def types(handle):
    return [event["type"] async for event in handle.history()]


async def test_a_paused_run_ingests_nothing(worker, caller):
    async with worker(Trader):
        handle = await caller.start(Trader, id="t")
        await handle.signal(Trader.note, "before")
        assert await handle.query(Trader.attempt) == 1
        await handle.pause()
        was = await types(handle)
        assert (await handle.describe()).state == "PAUSED"
        assert (await handle.describe()).paused_at is not None
        assert (await handle.result_snapshot()).state == "PAUSED"
        await handle.signal(Trader.note, "plain")
        await handle.signal(Trader.note, "keyed", idempotency_key="k")
        waiting = asyncio.create_task(handle.update(Trader.now))
        assert await handle.query(Trader.attempt) == 1  # answered from its history
        with pytest.raises(errors.NoAnswer):
            await handle.update(Trader.now, update_id="late", timeout=0.3)
        assert await types(handle) == was
        await handle.pause()  # it is
        await handle.resume()
        assert await waiting == 1
        assert await handle.update(Trader.now, update_id="late") == 1
        await handle.signal(Trader.finish)
        assert await handle.result() == ["before", "plain", "keyed", "attempt 1"]


async def test_a_pause_before_the_first_decision(worker, caller):
    async with worker(Trader):
        handle = await caller.start(Trader, id="t", delay=3600)
        await handle.pause()
        await handle.signal(Trader.finish)
        await handle.resume()
        described = await handle.describe()
        assert described.state == "RUNNING"
        assert described.due_at > described.created_at
        await handle.terminate()


async def test_deadlines_stand_still(worker, client):
    async with worker(Trader):
        handle = await client.start(Trader, id="t", timeout=1.0, chain_timeout=1.0)
        assert await handle.query(Trader.attempt) == 1
        await handle.pause()
        await asyncio.sleep(1.2)  # the clock is the hub's: it has to pass
        await handle.resume()
        await handle.signal(Trader.finish)
        assert await handle.result() == ["attempt 1"]
        described = await handle.describe()
        assert (described.deadline - described.created_at).total_seconds() > 2.0


async def test_timers_that_passed_meanwhile_fire_at_the_resume(worker, client):
    @workflow.defn
    async def nap() -> str:
        await asyncio.sleep(0.6)
        return "rested"

    async with worker(nap):
        handle = await client.start(nap, id="n")
        await handle.pause()
        await asyncio.sleep(0.7)  # the timer's time passes
        assert "TimerFired" not in await types(handle)
        await handle.resume()
        assert await handle.result(timeout=10) == "rested"


async def test_a_paused_run_can_be_terminated(worker, caller):
    async with worker(Trader):
        handle = await caller.start(Trader, id="t")
        await handle.pause()
        await handle.cancel("later")
        assert (await handle.describe()).state == "PAUSED"
        await handle.terminate("now")
        with pytest.raises(errors.WorkflowFailedError, match="now"):
            await handle.result()


async def test_a_cancel_waits_for_the_resume(worker, caller):
    async with worker(Trader):
        handle = await caller.start(Trader, id="t")
        await handle.pause()
        await handle.cancel("later")
        await handle.resume()
        with pytest.raises(errors.WorkflowFailedError, match="later"):
            await handle.result(timeout=10)


async def test_pause_and_resume_reach_the_live_attempt(worker, caller):
    async with worker(Trader):
        handle = await caller.start(Trader, id="t", retry=AT_ONCE)
        await handle.signal(Trader.fail, 1)
        await reach(handle, 2)
        pinned = caller.handle("t", Trader, execution_id=handle.execution_id)
        await pinned.pause()
        assert [run.state for run in await handle.chain()] == ["FAILED", "PAUSED"]
        await pinned.signal(Trader.finish)
        await pinned.resume()
        assert await handle.result() == ["attempt 2"]


async def test_a_queued_retry_is_paused(worker, caller):
    async with worker(Trader):
        handle = await caller.start(Trader, 2, id="t", retry=RetryPolicy(initial=0.4, jitter=0))
        async with asyncio.timeout(10):
            while len(await handle.chain()) < 2:
                await asyncio.sleep(0.01)
        await handle.pause()
        await handle.signal(Trader.finish)
        await asyncio.sleep(0.6)
        assert (await handle.chain())[1].state == "PAUSED"
        await handle.resume()
        assert await handle.result() == ["attempt 2"]


runs: list[str] = []
gates: list[asyncio.Event] = []


@activity.defn(local=True)
async def step() -> str:
    runs.append("local")
    return "local"


@activity.defn(mode="queue")
async def errand() -> str:
    runs.append("queue")
    await gates[-1].wait()
    return "queue"


@activity.defn(mode="queue", retry=RetryPolicy(initial=0.1, jitter=0))
async def stumbling() -> str:
    runs.append("stumbled")
    raise ValueError("again")


@workflow.defn
async def errands(which: str) -> str:
    return await {"local": step, "queue": errand, "stumbling": stumbling}[which]()


async def test_what_runs_finishes_and_is_ingested_later(worker, caller):
    gates.append(asyncio.Event())
    runs.clear()
    async with worker(errands, step, errand):
        handle = await caller.start(errands, "queue", id="e")
        async with asyncio.timeout(10):
            while not runs:
                await asyncio.sleep(0.01)
        await handle.pause()
        gates[-1].set()
        async with asyncio.timeout(10):
            while (await handle.describe()).activities[0]["state"] != "done":
                await asyncio.sleep(0.01)
        assert "ActivityCompleted" not in await types(handle)
        await handle.resume()
        assert await handle.result() == "queue"
        assert runs == ["queue"]


async def test_activities_of_a_paused_run_are_not_tried_again(worker, client):
    runs.clear()
    async with worker(errands, stumbling):
        handle = await client.start(errands, "stumbling", id="e")
        async with asyncio.timeout(10):
            while not runs:
                await asyncio.sleep(0.01)
        await handle.pause()
        async with asyncio.timeout(10):
            while (await handle.describe()).activities[0]["state"] != "held":
                await asyncio.sleep(0.01)
        tried = len(runs)
        await asyncio.sleep(0.5)
        assert len(runs) == tried
        await handle.resume()
        async with asyncio.timeout(10):
            while len(runs) == tried:
                await asyncio.sleep(0.01)
        await handle.terminate()


async def test_a_run_whose_decisions_fail_can_be_paused(worker, client):
    """The lever for a runaway: it need not wait for the next try of a broken run."""

    @workflow.defn
    async def broken() -> None:
        raise SystemExit

    async with worker(broken):
        handle = await client.start(broken, id="b")
        async with asyncio.timeout(10):
            while (await handle.describe()).error is None:
                await asyncio.sleep(0.01)
        await handle.pause()
        assert (await handle.describe()).state == "PAUSED"
        strikes = (await handle.describe()).strikes
        await asyncio.sleep(1.5)
        assert (await handle.describe()).strikes == strikes
        await handle.terminate()


async def test_a_pause_without_a_worker_is_kept(worker, client):
    handle = await client.start(Trader, id="t")
    with pytest.raises(errors.NoAnswer, match="as soon as a worker"):
        await handle.pause(timeout=0.1)
    async with worker(Trader):
        async with asyncio.timeout(10):
            while (await handle.describe()).state != "PAUSED":
                await asyncio.sleep(0.01)
        assert await types(handle) == []
        await handle.resume()
        await handle.signal(Trader.finish)
        assert await handle.result() == ["attempt 1"]


async def test_a_resume_takes_a_pause_back(worker, client):
    handle = await client.start(Trader, id="t")
    waiting = asyncio.create_task(handle.pause(timeout=20))
    async with asyncio.timeout(10):
        while (await handle.describe()).unread_messages == 0:
            await asyncio.sleep(0.01)
    await handle.resume()
    with pytest.raises(errors.NoAnswer, match="resumed"):
        await waiting
    async with worker(Trader):
        await handle.signal(Trader.finish)
        assert await handle.result() == ["attempt 1"]


async def test_paused_runs_are_open(worker, caller):
    async with worker(Trader):
        handle = await caller.start(Trader, id="t")
        await handle.pause()
        with pytest.raises(errors.WorkflowAlreadyStarted, match="PAUSED"):
            await caller.start(Trader, id="t")
        assert [run.state async for run in caller.list(state="PAUSED")] == ["PAUSED"]
        again = await caller.start(Trader, id="t", conflict="use_existing")
        assert again.execution_id == handle.execution_id
        await caller.start(Trader, id="t", conflict="terminate_existing")
        assert [run.state for run in await handle.chain()] == ["TERMINATED"]


async def test_pausing_what_cannot_be_paused(worker, caller):
    async with worker(Trader):
        with pytest.raises(errors.WorkflowNotFound):
            await caller.handle("nobody").pause()
        with pytest.raises(errors.WorkflowMisuse, match="entity"):
            await caller.handle("@Cart:1").pause()
        handle = await caller.start(Trader, id="t")
        await handle.signal(Trader.finish)
        await handle.result()
        with pytest.raises(errors.WorkflowClosed, match="COMPLETED"):
            await handle.pause()
        with pytest.raises(errors.WorkflowClosed, match="COMPLETED"):
            await handle.resume()


@activity.defn(local=True)
async def slow_step() -> str:
    await asyncio.sleep(0.05)
    return "done"


@workflow.defn
class Stepping:
    """Always has a local step or a timer under way."""

    def __init__(self) -> None:
        self.done = False

    @workflow.run
    async def run(self) -> int:
        count = 0
        while not self.done:
            await slow_step()
            await asyncio.sleep(0.001)
            count += 1
        return count

    @workflow.signal
    def finish(self) -> None:
        self.done = True


async def test_a_pause_that_is_taken_back_has_no_effect(worker, caller):
    """Whenever the resume comes, the run goes on."""
    async with worker(Stepping, slow_step):
        handles = [await caller.start(Stepping, id=f"s{n}") for n in range(12)]
        for n, handle in enumerate(handles):
            pausing = asyncio.create_task(handle.pause(timeout=20))
            for _ in range(n):
                await asyncio.sleep(0.0003)  # each finds the pause a little further on its way
            await handle.resume()
            try:
                await pausing
                await handle.resume()
            except errors.NoAnswer:
                pass
        for handle in handles:
            await handle.signal(Stepping.finish)
        assert all([await handle.result(timeout=10) for handle in handles])
