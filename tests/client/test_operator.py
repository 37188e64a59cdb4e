"""What an operator asks of a run and does to it: activities, dead letters, records, many runs at once, and where it stands."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import timedelta

import pytest

from harvest import RetryPolicy, activity, errors, workflow
from harvest.ids import new_id
from tests.client.test_attempts import AT_ONCE, Trader, reach

fixed: list[bool] = []
tries: list[str] = []
gates: list[asyncio.Event] = []


@activity.defn(mode="queue", retry=RetryPolicy(initial=timedelta(hours=1), jitter=0))
async def stumble(name: str) -> str:
    tries.append(name)
    if len(tries) < 2:
        raise ValueError("not yet")
    return name


@activity.defn(mode="queue")
async def hang() -> str:
    tries.append("hang")
    await gates[-1].wait()
    return "late"


@workflow.defn
async def errands(which: str) -> str:
    return await (stumble(which) if which != "hang" else hang())


@workflow.defn
class Broken:
    """Its decisions fail until it is fixed."""

    def __init__(self) -> None:
        self.words: list[str] = []

    @workflow.run
    async def run(self, kind: str) -> str:
        if not fixed:
            raise SystemExit(f"{kind} 4711")
        return kind


async def eventually(check):
    async with asyncio.timeout(20):
        while not await check():
            await asyncio.sleep(0.02)


# --- activities


async def test_a_waiting_activity_is_tried_now(worker, caller):
    tries.clear()
    async with worker(errands, stumble, hang):
        handle = await caller.start(errands, "a", id="e")

        async def waits():
            found = (await handle.describe()).activities
            return bool(found) and found[0]["attempt"] == 2

        await eventually(waits)
        diagnosis = await handle.diagnose()
        assert (diagnosis.code, diagnosis.command) == ("activity_backoff", "harvest activity retry-now e 1")
        assert "not yet" in diagnosis.sentence
        await handle.retry_activity(1)
        assert await handle.result(timeout=10) == "a"
        with pytest.raises(errors.ActivityNotFound, match="no activity 1") as caught:
            await handle.retry_activity(1)
        assert "none" in caught.value.hint
        with pytest.raises(errors.ConfigError, match="seq"):
            await handle.retry_activity(0)


@pytest.mark.parametrize("which", ["a", "hang"])
async def test_an_activity_is_given_up(worker, client, which):
    tries.clear()
    gates.append(asyncio.Event())
    async with worker(errands, stumble, hang):
        handle = await client.start(errands, which, id="e")

        async def under_way():
            found = (await handle.describe()).activities
            return bool(found) and bool(tries) and (which == "hang" or found[0]["attempt"] == 2)

        await eventually(under_way)
        await handle.fail_activity(1, "the shop burned down")
        with pytest.raises(errors.WorkflowFailedError, match="burned down"):
            await handle.result(timeout=10)
        gates[-1].set()


# --- dead letters


async def dead(client, count):
    async def check():
        return len([letter async for letter in client.dead_letters.list()]) == count

    await eventually(check)


async def test_dead_letters_by_cause_redriven_and_discarded(worker, client):
    fixed.clear()
    async with worker(Broken):
        handles = [await client.start(Broken, kind, id=f"b-{n}") for n, kind in enumerate(["x", "x", "y"])]
        await dead(client, 3)
        causes = await client.dead_letters.causes()
        assert [(c.type, c.error, c.count) for c in causes] == [
            ("Broken", "WorkflowMisuse", 2),
            ("Broken", "WorkflowMisuse", 1),
        ]
        assert "x #" in causes[0].message
        by_filter = [letter async for letter in client.dead_letters.list(workflow_id="b-2", page=1)]
        assert [(letter.type, letter.state, letter.strikes) for letter in by_filter] == [("Broken", "RUNNING", 3)]
        shown = await client.dead_letters.show(handles[0].execution_id)
        assert "x 4711" in shown.error.message
        assert (await handles[0].diagnose()).command == f"harvest dead-letters redrive {shown.execution_id}"
        await client.dead_letters.discard(handles[2].execution_id, "hopeless")
        with pytest.raises(errors.WorkflowFailedError, match="discarded from the dead letters: hopeless"):
            await handles[2].result(timeout=10)
        fixed.append(True)
        for handle in handles[:2]:
            await client.dead_letters.redrive(handle.execution_id)
            assert await handle.result(timeout=10) == "x"
        await dead(client, 0)


async def test_a_redrive_that_fails_comes_back(worker, client):
    fixed.clear()
    async with worker(Broken):
        handle = await client.start(Broken, "z", id="b")
        await dead(client, 1)
        first = await client.dead_letters.show(handle.execution_id)
        await client.dead_letters.redrive(handle.execution_id)

        async def again():
            found = [letter async for letter in client.dead_letters.list()]
            return bool(found) and found[0].at > first.at

        await eventually(again)
        await handle.terminate()


async def test_dead_letters_that_are_none(client):
    with pytest.raises(errors.WorkflowNotFound, match="dead letters"):
        await client.dead_letters.show(new_id())
    with pytest.raises(errors.WorkflowNotFound):
        await client.dead_letters.redrive(new_id())
    with pytest.raises(errors.WorkflowNotFound):
        await client.dead_letters.discard(new_id())
    assert await client.dead_letters.causes() == []


# --- the record of a run


async def test_erasure_leaves_the_shape_of_a_history(worker, caller, dsn):
    async with worker(Trader):
        handle = await caller.start(Trader, id="t", memo="secret", search_attributes={"who": "secret"})
        await handle.signal(Trader.note, "secret", idempotency_key="k")
        await handle.update(Trader.now, update_id="u")
        with pytest.raises(errors.EraseRefused, match="only a closed run"):
            await handle.erase()
        await handle.signal(Trader.finish)
        await handle.result()
        was = [(e["event_id"], e["type"]) async for e in handle.history()]
        await handle.hold("case 17", author="ada")
        assert (await handle.describe()).legal_hold["reason"] == "case 17"
        with pytest.raises(errors.EraseRefused, match="case 17") as caught:
            await handle.erase()
        assert "--lift" in caught.value.hint
        await handle.lift_hold()
        assert await handle.erase() == (await handle.describe()).decisions
        history = [e async for e in handle.history()]
        assert [(e["event_id"], e["type"]) for e in history] == was
        assert "secret" not in str(history)
        described = await handle.describe()
        assert "secret" not in str(described)
        assert described.erased_at is not None
        with pytest.raises(errors.PayloadErased):
            await handle.result()
        assert (await handle.result_snapshot()).result is None
        with pytest.raises(errors.QueryFailed, match="erased"):
            await handle.query(Trader.attempt)
        with pytest.raises(errors.RerunRefused, match="erased"):
            await handle.rerun()
        with pytest.raises(errors.ResetRefused, match="erased"):
            await handle.reset()
    import asyncpg

    connection = await asyncpg.connect(dsn)
    for table in ("executions", "decisions", "messages", "workflow_tasks", "activity_tasks", "dead_letters"):
        rows = await connection.fetch(f"select t::text from harvest.{table} t")
        assert "secret" not in str(rows), table
    await connection.close()


async def test_erasure_is_of_one_attempt(worker, client):
    """L-4."""
    async with worker(Trader):
        handle = await client.start(Trader, 2, id="t", retry=AT_ONCE)
        await handle.signal(Trader.note, "kept")
        await handle.signal(Trader.finish)
        assert await handle.result() == ["kept", "attempt 2"]
        await client.handle("t", execution_id=handle.execution_id).erase()
        assert await client.handle("t").result() == ["kept", "attempt 2"]


async def test_triage_notes(worker, client):
    async with worker(Trader):
        handle = await client.start(Trader, id="t")
        await handle.triage("looks odd", author="ada")
        await handle.triage("was the new tariff", status="resolved", author="bob")
        notes = await handle.triage_notes()
        assert [(n.author, n.status, n.note) for n in notes] == [
            ("ada", "investigating", "looks odd"),
            ("bob", "resolved", "was the new tariff"),
        ]
        with pytest.raises(errors.ConfigError, match="open, investigating, resolved"):
            await handle.triage("x", status="done")
        with pytest.raises(errors.HarvestError, match="note"):
            await handle.triage("")
        await handle.terminate()


# --- many runs


async def test_bulk_is_dry_until_told_otherwise(worker, caller):
    async with worker(Trader):
        handles = [await caller.start(Trader, id=f"t-{n}", search_attributes={"n": n % 2}) for n in range(12)]
        other = await caller.start(Trader, id="other")
        seen = await caller.bulk("terminate", prefix="t-")
        assert (seen.matched, seen.done, seen.dry_run, len(seen.sample)) == (12, 0, True, 10)
        moved = []
        report = await caller.bulk("pause", prefix="t-", dry_run=False, progress=lambda r: moved.append(r.done))
        assert (report.done, report.failed) == (12, [])
        assert moved[-1] == 12
        assert (await caller.bulk("resume", state="PAUSED", dry_run=False)).done == 12
        told = await caller.bulk("signal", signal=Trader.note, args=("hi",), search_attributes={"n": 1}, dry_run=False)
        assert told.done == 6
        assert (await caller.bulk("signal", signal="finish", prefix="t-", limit=3, dry_run=False)).done == 3
        done = [await h.result() for h in handles[-3:]]
        assert done[0] in (["attempt 1"], ["hi", "attempt 1"])
        assert (await caller.bulk("cancel", type="Trader", prefix="t-", dry_run=False)).done == 9
        await other.signal(Trader.finish)
        assert await other.result() == ["attempt 1"]


@pytest.mark.parametrize(
    ("verb", "options", "said"),
    [
        ("explode", {"prefix": "t"}, "cancel, terminate, signal, pause, resume"),
        ("cancel", {}, "every open run"),
        ("cancel", {"prefix": "t", "state": "FAILED"}, "RUNNING or PAUSED"),
        ("cancel", {"colour": "red"}, "not a filter"),
        ("signal", {"prefix": "t"}, "signal"),
        ("cancel", {"prefix": "t", "signal": "x"}, "signal"),
        ("cancel", {"prefix": "t", "parallel": 0}, "parallel"),
        ("cancel", {"search_attributes": {}}, "is empty"),
    ],
)
async def test_bulk_that_cannot_be(client, verb, options, said):
    with pytest.raises(errors.ConfigError, match=said):
        await client.bulk(verb, **options)


# --- where it stands


@workflow.defn
async def standing() -> None:
    async def other() -> None:
        await workflow.receive("word")

    task = asyncio.create_task(other(), name="listener")
    try:
        await asyncio.sleep(3600)
    finally:
        task.cancel()


async def test_the_stack_and_what_is_awaited(worker, caller):
    async with worker(standing, Trader):
        handle = await caller.start(standing, id="s")
        stacks = {task.task: task.frames for task in await handle.stack()}
        assert set(stacks) == {"main", "listener"}
        assert any(frame.code == "await asyncio.sleep(3600)" and frame.file == __file__ for frame in stacks["main"])
        assert any("receive" in frame.function for frame in stacks["listener"])
        waits = await handle.awaitables()
        assert {(a.kind, a.name) for a in waits} == {("timer", "timer"), ("signal", "word")}
        diagnosis = await handle.diagnose()
        assert diagnosis.code == "signal"
        assert "'word', or a timer in" in diagnosis.sentence
        before = (await handle.describe()).events
        await handle.pause()
        assert {task.task for task in await handle.stack()} == {"main", "listener"}
        assert (await handle.describe()).events == before
        await handle.terminate()
        assert await handle.stack() == await handle.awaitables() == []
        trader = await caller.start(Trader, id="t")
        (condition,) = await trader.awaitables()
        assert condition.kind == "condition"
        assert "self.failing is not None or self.done" in condition.where
        assert (await trader.diagnose()).code == "condition"
        await trader.terminate()


async def test_inspection_is_of_one_attempt(worker, caller):
    """L-4."""
    async with worker(Trader):
        handle = await caller.start(Trader, id="t", retry=AT_ONCE)
        await handle.signal(Trader.fail, 1)
        await reach(handle, 2)
        first = caller.handle("t", execution_id=handle.execution_id)
        assert await first.stack() == []
        found = await first.diagnose()
        live = (await caller.handle("t").describe()).execution_id
        assert (found.code, found.command) == ("retried", f"harvest run diagnose --execution-id {live} t")
        assert len(await caller.handle("t").stack()) == 1
        await handle.terminate()


async def test_diagnoses(worker, client):
    nobody = await client.start(Trader, id="n", queue="empty")
    assert ((await nobody.diagnose()).code, (await nobody.diagnose()).command) == (
        "no_worker",
        "harvest worker MODULE --queue empty",
    )
    async with worker(Trader, standing):
        handle = await client.start(Trader, id="t", delay=3600)
        assert (await handle.diagnose()).code == "delayed"
        await handle.pause()
        found = await handle.diagnose()
        assert (found.code, found.command) == ("paused", "harvest run resume t")
        await handle.terminate("no")
        closed = await handle.diagnose()
        assert (closed.code, "no" in closed.sentence) == ("closed", True)
        with pytest.raises(errors.WorkflowNotFound):
            await client.handle("nobody").diagnose()


async def test_the_timeline(worker, client):
    @workflow.defn
    class Day:
        def __init__(self) -> None:
            self.on = False

        @workflow.run
        async def run(self) -> None:
            await asyncio.sleep(0.01)
            await stumble("x")
            await workflow.wait_until(lambda: self.on)

        @workflow.signal
        def go(self) -> None:
            self.on = True

        @workflow.update
        def poke(self) -> None: ...

    tries[:] = ["warm"]
    async with worker(Day, stumble):
        handle = await client.start(Day, id="d")
        await handle.update(Day.poke)

        async def shipped():
            return any(s.kind == "activity" and s.outcome for s in await handle.timeline())

        await eventually(shipped)
        open_run = (await handle.timeline())[0]
        assert (open_run.kind, open_run.ended_at, open_run.outcome) == ("run", None, None)
        await handle.signal(Day.go)
        await handle.result()
        spans = await handle.timeline()
        assert [s.outcome for s in spans if s.kind in ("run", "timer", "activity", "update")] == [
            "COMPLETED",
            *["done"] * 3,
        ]
        assert any(s.kind == "signal" and s.name == "go" for s in spans)
        assert all(s.ended_at >= s.started_at for s in spans)
        assert sum(s.kind == "decision" for s in spans) == (await handle.describe()).decisions


async def test_listing_letters_stops_at_its_limit(client):
    async with aclosing(client.dead_letters.list(limit=0)) as letters:
        assert [letter async for letter in letters] == []
    with pytest.raises(errors.ConfigError, match="page"):
        _ = [letter async for letter in client.dead_letters.list(page=0)]


@pytest.mark.parametrize("touch", ["signal", "pause"])
async def test_a_redrive_works_whoever_looked_at_the_run_before(worker, client, touch):
    fixed.clear()
    async with worker(Broken):
        handle = await client.start(Broken, "z", id="b")
        await dead(client, 1)
        if touch == "signal":
            await handle.signal("word")
        else:
            await handle.pause()
            await handle.resume()
            await dead(client, 1)
        fixed.append(True)
        await client.dead_letters.redrive(handle.execution_id)
        assert await handle.result(timeout=10) == "z"


async def test_a_resume_gives_a_dead_run_a_new_chance(worker, client):
    fixed.clear()
    async with worker(Broken):
        handle = await client.start(Broken, "z", id="b")
        await dead(client, 1)
        await handle.pause()
    fixed.append(True)
    async with worker(Broken):
        assert (await handle.describe()).state == "PAUSED"
        await handle.resume()
        assert await handle.result(timeout=10) == "z"
        await dead(client, 0)


async def test_commands_can_be_pasted(worker, client):
    async with worker(Trader):
        handle = await client.start(Trader, id="-x y")
        await handle.pause()
        assert (await handle.diagnose()).command == "harvest run resume -- '-x y'"
        await handle.terminate()


async def test_what_is_no_id_or_filter_is_named(client):
    for act in (client.dead_letters.show("nope"), client.dead_letters.discard("x")):
        with pytest.raises(errors.ConfigError, match="execution_id"):
            await act
    with pytest.raises(errors.ConfigError, match="execution_id"):
        client.handle("t", execution_id="zz")
    with pytest.raises(errors.HarvestError, match="type"):
        _ = [letter async for letter in client.dead_letters.list(type="a\x00b")]
    with pytest.raises(errors.ConfigError, match="limit"):
        await client.bulk("cancel", prefix="t", limit=-1)
    with pytest.raises(errors.ConfigError, match="after"):
        await client.bulk("cancel", after="2020")
    with pytest.raises(errors.PayloadError, match="NUL"):
        await client.bulk("cancel", search_attributes={"a": "\x00"})


async def test_an_execution_of_another_run_is_refused(worker, client):
    async with worker(Trader):
        one, other = await client.start(Trader, id="one"), await client.start(Trader, id="other")
        mixed = client.handle("one", execution_id=str(other.execution_id))
        for act in (mixed.describe(), mixed.terminate(), mixed.hold("x"), mixed.erase(), mixed.diagnose(), mixed.rerun()):
            with pytest.raises(errors.WorkflowNotFound, match=r"'(one|other)'"):
                await act
        await client.bulk("terminate", type="Trader", dry_run=False)
        assert (await one.describe()).state == "TERMINATED"


def test_the_first_wait_is_never_cut():
    assert RetryPolicy(initial=3600).spec().cap == 3600
