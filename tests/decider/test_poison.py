"""A poisoned run harms nobody else (F-4); what fails the decision leaves the run open (R-2, R-3)."""

from __future__ import annotations

import asyncio
import sys

import pytest

from harvest import ApplicationError, activity, errors, workflow
from harvest.hub.queries import Query
from harvest.testing import Replayer


@activity.defn(local=True)
async def step(n: int) -> int:
    return n


@workflow.defn
async def healthy(count: int) -> int:
    return sum([await step(n) for n in range(count)])


async def error_of(handle) -> str:
    """Waits until the run's last decision failed, and tells why."""
    while True:
        described = await handle.describe()
        if described.error is not None:
            assert described.state == "RUNNING"
            return described.error.message
        await asyncio.sleep(0.02)


async def others_run(client) -> None:
    results = await asyncio.gather(*(client.execute(healthy, 5, id=f"healthy-{n}") for n in range(20)))
    assert results == [10] * 20


@workflow.defn
async def exits() -> None:
    async def inner() -> None:
        sys.exit(3)

    await asyncio.create_task(inner())


@workflow.defn
async def spins() -> None:
    while True:
        await asyncio.sleep(0)


@workflow.defn
async def foreign() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(waits_for(OUTSIDE[0]))


async def waits_for(future) -> None:
    await future


@workflow.defn
async def threads() -> None:
    await asyncio.get_running_loop().run_in_executor(None, print)


@workflow.defn
async def bad_effect() -> None:
    try:
        workflow.side_effect(lambda: 1 / 0)
    except ZeroDivisionError:
        pass


OUTSIDE: list = []


@pytest.mark.parametrize(
    ("culprit", "said"),
    [
        (exits, "SystemExit"),
        (spins, "did not come to rest"),
        (foreign, "not of the workflow"),
        (threads, "not available inside a workflow"),
        (bad_effect, "side effect raised ZeroDivisionError"),
    ],
)
async def test_misuse_fails_the_decision_only(client, worker, culprit, said):
    OUTSIDE[:] = [asyncio.get_running_loop().create_future()]
    async with worker(healthy, step, culprit):
        handle = await client.start(culprit, id="culprit")
        await others_run(client)
        assert said in await error_of(handle)


async def test_three_strikes_park_a_run_until_a_new_worker_comes(client, worker):
    broken = True

    @workflow.defn
    async def mended() -> str:
        if broken:
            await asyncio.get_running_loop().run_in_executor(None, print)
        return "fine"

    async with worker(mended, healthy, step):
        handle = await client.start(mended, id="m")
        while not await client.db.fetch(Query("t", "select 1 from dead_letters")):
            await asyncio.sleep(0.05)
        with pytest.raises(errors.QueryFailed, match="parked"):
            await client.handle("m").query("anything")
        await others_run(client)
    broken = False
    async with worker(mended):
        assert await handle.result(timeout=20) == "fine"
    assert not await client.db.fetch(Query("t", "select 1 from dead_letters"))


async def test_a_parked_run_can_be_terminated_with_its_children(client, worker):
    @workflow.defn
    async def kid() -> None:
        await asyncio.sleep(3600)

    @workflow.defn
    async def parent() -> None:
        workflow.start_child(kid, id="kid")
        await asyncio.sleep(0.01)
        await asyncio.get_running_loop().run_in_executor(None, print)

    async with worker(parent, kid):
        handle = await client.start(parent, id="p")
        while not await client.db.fetch(Query("t", "select 1 from dead_letters")):
            await asyncio.sleep(0.05)
        await handle.terminate("enough")
        with pytest.raises(errors.WorkflowFailedError):
            await client.handle("kid").result(timeout=20)


async def test_mail_that_cannot_be_read_stops_nobody_else(client, remote, worker):
    async with worker(healthy, step):
        await client.start(healthy, 1, id="w", delay=30)
        bad = "insert into messages (message_id, execution_id, pool, partition, kind, event)"
        bad += ' select gen_random_uuid(), execution_id, pool, partition, \'cancel\', \'{"type":"CancelRequested","reason":5}\''
        await client.db.fetch(Query("t", bad + " from executions where workflow_id = 'w'"))
        assert await error_of(client.handle("w"))
        assert await remote.execute(healthy, 5, id="after") == 10


async def test_a_changed_workflow_is_named_and_waits_for_its_fix(client, worker):
    def version(n: int):
        @workflow.defn(name="versioned")
        async def versioned() -> str:
            await (step(1) if n == 1 else asyncio.sleep(0.001))
            await workflow.receive("go")
            return f"version {n}"

        return versioned

    async with worker(version(1), step):
        handle = await client.start("versioned", id="v")
        while (await handle.describe()).decisions < 2:
            await asyncio.sleep(0.01)
    [verdict] = [r async for r in Replayer([version(2), step]).replay_open(client)]
    assert not verdict.fits and "event 1" in (verdict.error or "")
    async with worker(version(2), step):
        await handle.signal("go")
        message = await error_of(handle)
        assert "ActivityScheduled" in message and "TimerStarted" in message
    async with worker(version(1), step):
        assert await handle.result(timeout=20) == "version 1"


async def test_errors_that_are_hard_to_store(client, worker):
    class Odd(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    @activity.defn
    async def raises(kind: int) -> None:
        if kind == 0:
            raise ApplicationError("x", {(1, 2): object()}, float("nan"), type=404, non_retryable=True)  # type: ignore[arg-type]
        if kind == 1:
            raise ApplicationError("lone \udcff and nul \x00", non_retryable=True)
        if kind == 2:
            raise ApplicationError("odd", non_retryable=True) from Odd()
        if kind == 3:
            raise asyncio.CancelledError
        sys.exit(2)

    @workflow.defn
    async def run(kind: int, mode: str) -> str:
        from harvest import RetryPolicy

        try:
            await workflow.start_activity(raises, kind, mode=mode, retry=RetryPolicy(max_attempts=1))
        except errors.ActivityError as error:
            return error.type
        return "?"

    async with worker(run, raises):
        for mode in ("local", "eager", "queue"):
            found = [await client.execute(run, kind, mode, id=f"{mode}-{kind}") for kind in range(5)]
            assert found == ["404", "ApplicationError", "ApplicationError", "CancelledError", "SystemExit"], mode


async def test_history_cap_fails_the_run_and_names_the_way_out(client, worker, monkeypatch):
    monkeypatch.setattr("harvest.decisions.decide.HISTORY_CAP", 20)

    @workflow.defn
    async def endless() -> None:
        while True:
            await step(1)

    async with worker(endless, step):
        with pytest.raises(errors.WorkflowFailedError, match="history reached") as caught:
            await client.execute(endless, id="e")
        assert caught.value.type == "HistoryCapExceeded"
        while not await client.db.fetch(Query("t", "select 1 from dead_letters where workflow_id = 'e'")):
            await asyncio.sleep(0.01)
        replayed = await client.handle("e").export_history()
        assert Replayer([endless, step]).replay_file(replayed).fits


async def test_a_run_whose_code_nobody_has_can_be_ended(worker, client, caplog):
    lost = await client.start("Misspelt", 1, id="lost")
    async with worker(healthy, step):
        if await mode_of(client) == "owner":  # in sticky mode nobody claims what it does not know
            assert "is not known to" in await error_of(lost)
        await others_run(client)
        await lost.terminate("a typo", timeout=20)
        assert (await lost.describe()).state == "TERMINATED"
    assert "Traceback" not in caplog.text


async def mode_of(client) -> str:
    return (await client.owner_status()).mode
