"""An update id acts once in a logical run, whoever asks again and through which handle (R-8, L-5)."""

from __future__ import annotations

import pytest

from harvest import errors, workflow


@workflow.defn
class Till:
    """Takes until it is closed, or ends with what it took."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.over = False

    @workflow.run
    async def run(self, rounds: int = 0) -> list[int]:
        await workflow.wait_until(lambda: self.over)
        if rounds:
            workflow.continue_as_new(rounds - 1)
        return self.taken

    @workflow.update
    def take(self, n: int, last: bool = False) -> int:
        self.taken.append(n)
        self.over = last
        return n


async def test_update_with_start_asked_again_starts_nothing(worker, caller):
    async with worker(Till):
        for _ in range(3):
            answer = await caller.update_with_start(Till, id="t", update=Till.take, update_args=(7, True), update_id="u1")
            assert answer == 7
            assert await caller.handle("t").result(timeout=10) == [7]
        assert [run.state async for run in caller.list()] == ["COMPLETED"]
        assert await caller.update_with_start(Till, id="t", update="take", update_args=(8, True), update_id="u2") == 8
        assert len([run async for run in caller.list()]) == 2


async def test_an_execution_answers_for_its_own_logical_run(worker, caller):
    async with worker(Till):
        one = await caller.start(Till, id="t")
        assert await one.update(Till.take, 1, True, update_id="u") == 1
        assert await one.result(timeout=10) == [1]
        two = await caller.start(Till, id="t")
        assert await two.update(Till.take, 2, update_id="u") == 2
        assert await two.update(Till.take, 3, update_id="only-two") == 3
        first = caller.handle("t", Till, execution_id=one.execution_id)
        assert await first.update_result("u", timeout=10) == 1
        assert await first.update(Till.take, 4, update_id="u") == 1
        assert await first.start_update(Till.take, 4, update_id="u") == "u"
        with pytest.raises(errors.UpdateNotFound):
            await first.update_result("only-two", timeout=10)
        with pytest.raises(errors.WorkflowClosed):
            await first.update(Till.take, 4, update_id="only-two")
        assert await caller.handle("t").update_result("u", timeout=10) == 2  # by id: the newest that has it


async def test_a_key_goes_on_with_what_the_run_continues_as(worker, caller):
    async with worker(Till):
        handle = await caller.start(Till, 2, id="t")
        first = caller.handle("t", Till, execution_id=handle.execution_id)
        for n in range(3):
            assert await caller.handle("t", Till).update(Till.take, n, True, update_id=f"u{n}") == n
        assert await handle.result(timeout=10) == [2]
        for n in range(3):
            assert await first.update_result(f"u{n}", timeout=10) == n
            assert await first.update(Till.take, 9, update_id=f"u{n}") == n
