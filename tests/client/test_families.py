"""Children, continue-as-new, and runs that talk to each other."""

from __future__ import annotations

import asyncio

import pytest

from harvest import errors, workflow


@workflow.defn
async def double(n: int) -> int:
    if n < 0:
        raise ValueError("negative")
    await asyncio.sleep(0.001)
    return 2 * n


@workflow.defn
async def sums(count: int) -> int:
    return sum(await asyncio.gather(*(double(n) for n in range(count))))


async def test_children(client, worker):
    async with worker(double, sums):
        assert await client.execute(sums, 50, id="family") == 50 * 49
        kids = [run async for run in client.list(type="double")]
        assert len(kids) == 50
        assert {run.parent_workflow_id for run in kids} == {"family"}


async def test_a_failed_child(client, worker):
    @workflow.defn
    async def careful() -> str:
        try:
            await double(-1)
        except errors.ChildWorkflowError as error:
            return f"{error.type}: {error.__cause__}"
        return "?"

    async with worker(double, careful):
        assert await client.execute(careful, id="careful") == "ValueError: negative"


async def test_a_child_whose_id_is_taken(client, worker):
    @workflow.defn
    async def clash() -> str:
        try:
            await workflow.execute_child(double, 1, id="clash")
        except errors.ChildWorkflowError as error:
            return error.type
        return "?"

    async with worker(double, clash):
        assert await client.execute(clash, id="clash") == "WorkflowAlreadyStarted"


@pytest.mark.parametrize(("policy", "state"), [("terminate", "TERMINATED"), ("cancel", "CANCELLED"), ("abandon", "COMPLETED")])
async def test_parent_close_policies(client, worker, policy, state):
    @workflow.defn
    async def listener() -> str:
        return await workflow.receive("go", str)

    @workflow.defn
    async def leaver() -> None:
        workflow.start_child(listener, id="kid", parent_close=policy)
        await asyncio.sleep(0.001)

    async with worker(listener, leaver):
        await client.execute(leaver, id="leaver")
        kid = client.handle("kid")
        if policy == "abandon":
            await kid.signal("go", "on")
            assert await kid.result(timeout=20) == "on"
        else:
            with pytest.raises(errors.WorkflowFailedError):
                await kid.result(timeout=20)
        assert (await kid.result_snapshot()).state == state


async def test_an_abandoned_child_outlives_a_parent_that_closes_at_once(client, worker):
    @workflow.defn
    async def leaver() -> None:
        workflow.start_child(double, 4, id="orphan", parent_close="abandon")
        workflow.start_child(double, 4, id="stillborn", parent_close="terminate")

    async with worker(double, leaver):
        await client.execute(leaver, id="leaver")
        assert await client.handle("orphan").result(timeout=20) == 8
        with pytest.raises(errors.WorkflowNotFound):
            await client.handle("stillborn").describe()


async def test_cancelling_a_child(client, worker):
    @workflow.defn
    async def sleeper() -> None:
        await asyncio.sleep(3600)

    @workflow.defn
    async def impatient() -> str:
        try:
            async with asyncio.timeout(0.05):
                await workflow.execute_child(sleeper, id="kid", parent_close="cancel")
        except TimeoutError:
            return "gave up"
        return "?"

    async with worker(sleeper, impatient):
        assert await client.execute(impatient, id="i") == "gave up"
        with pytest.raises(errors.WorkflowFailedError):
            await client.handle("kid").result(timeout=20)
        assert (await client.handle("kid").result_snapshot()).state == "CANCELLED"


async def test_continue_as_new_keeps_signals(client, remote, worker):
    """R-7: neither unread nor unseen signals are lost between two runs."""

    @workflow.defn
    async def relay(total: int, rounds: int) -> int:
        total += await workflow.receive("add", int)
        if rounds > 1:
            workflow.continue_as_new(total, rounds - 1)
        return total

    async with worker(relay):
        handle = await client.start(relay, 0, 60, id="relay")
        for n in range(60):
            await (handle if n % 2 else remote.handle("relay")).signal("add", n)
        assert await handle.result(timeout=30) == sum(range(60))
        runs = [run async for run in client.list(prefix="relay")]
        assert len(runs) == 60
        assert sum(run.state == "CONTINUED_AS_NEW" for run in runs) == 59


async def test_continue_as_another_type(client, worker):
    @workflow.defn
    async def first(n: int) -> int:
        workflow.continue_as_new(n + 1, workflow=double)

    async with worker(first, double):
        assert await client.execute(first, 3, id="f") == 8


async def test_external_signals_and_cancels(client, worker):
    @workflow.defn
    async def target() -> str:
        try:
            return await workflow.receive("word", str)
        except asyncio.CancelledError:
            return "cancelled"

    @workflow.defn
    async def sender(to: str, what: str) -> str:
        other = workflow.external(to)
        try:
            await (other.cancel("stop") if what == "cancel" else other.signal("word", what))
        except errors.ExternalWorkflowError as error:
            return str(error)
        return "sent"

    async with worker(target, sender):
        one = await client.start(target, id="one")
        two = await client.start(target, id="two")
        assert await client.execute(sender, "one", "hello", id="s1") == "sent"
        assert await client.execute(sender, "two", "cancel", id="s2") == "sent"
        assert await one.result(timeout=20) == "hello"
        assert await two.result(timeout=20) == "cancelled"
        assert "nowhere" in await client.execute(sender, "nowhere", "x", id="s3")


async def test_search_attributes_of_a_run(client, worker):
    @workflow.defn
    async def tagged() -> None:
        workflow.upsert_search_attributes(stage="one", level=3)
        await asyncio.sleep(0.001)
        workflow.upsert_search_attributes(stage="two", level=None)

    async with worker(tagged):
        await client.execute(tagged, id="tagged", search_attributes={"kept": True})
        described = await client.handle("tagged").describe()
    assert described.search_attributes == {"stage": "two", "kept": True}
