"""The kernel by itself: waits, order, seals, versions (R-1 to R-5)."""

from __future__ import annotations

import asyncio
import contextvars

import msgspec
import pytest

from harvest import activity, errors, workflow
from harvest.core import events as ev
from harvest.core.instance import Instance
from harvest.core.program import RunInfo
from harvest.core.replay import StoredDecision, replay

Raw = msgspec.Raw
T0 = 1_700_000_000_000_000


@activity.defn
async def newer(n: int) -> int:
    return n


def instance_of(definition, *args) -> Instance:
    program = getattr(definition, "__harvest_definition__", None) or definition.definition
    return Instance(RunInfo("w", "e", program.name, "q", 9, Raw(msgspec.json.encode(list(args)))), program)


def closing(outcome):
    assert outcome.closed
    return outcome.commands[-1]


@activity.defn
async def act(n: int) -> int:
    return n


def test_a_condition_that_answers_none_keeps_waiting():
    @workflow.defn
    class Decide:
        def __init__(self) -> None:
            self.decision: str | None = None

        @workflow.run
        async def run(self) -> str | None:
            await workflow.wait_until(lambda: self.decision)
            return self.decision

        @workflow.signal
        def decide(self, word: str) -> None:
            self.decision = word

        @workflow.signal
        def nothing(self) -> None: ...

    run = instance_of(Decide)
    run.activate(T0, [])
    run.activate(T0, [ev.SignalReceived("nothing", Raw(b"[]"))])
    done = run.activate(T0, [ev.SignalReceived("decide", Raw(b'["yes"]'))])
    assert closing(done) == ev.RunCompleted(Raw(b'"yes"')) or bytes(closing(done).result) == b'"yes"'


def test_conditions_let_one_waiter_through_at_a_time():
    @workflow.defn
    async def crossing() -> list[int]:
        busy, seen = [False], []

        async def walk(n: int) -> None:
            await workflow.wait_until(lambda: not busy[0])
            assert not busy[0]
            busy[0] = True
            await asyncio.sleep(0)
            seen.append(n)
            busy[0] = False

        await asyncio.gather(*(walk(n) for n in range(4)))
        return seen

    assert bytes(closing(instance_of(crossing).activate(T0, [])).result) == b"[0,1,2,3]"


def test_a_condition_that_raises_raises_in_its_waiter():
    @workflow.defn
    async def careless() -> str:
        counter = iter([0])
        try:
            await workflow.wait_until(lambda: next(counter) or 1 / 0)
        except (ZeroDivisionError, StopIteration, RuntimeError) as error:
            return type(error).__name__
        return "?"

    assert bytes(closing(instance_of(careless).activate(T0, [])).result) == b'"ZeroDivisionError"'


def test_what_is_given_up_at_once_leaves_no_trace():
    @workflow.defn
    async def hasty() -> str:
        task = asyncio.create_task(act(1))
        await asyncio.sleep(0)
        task.cancel()
        async with asyncio.timeout(5):
            pass
        return "done"

    outcome = instance_of(hasty).activate(T0, [])
    assert [type(c) for c in outcome.commands] == [ev.RunCompleted]


def test_timers_fire_in_order_of_their_due_time():
    @workflow.defn
    async def naps() -> list[float]:
        seen: list[float] = []

        async def nap(ms: float) -> None:
            await asyncio.sleep(ms / 1000)
            seen.append(ms)

        await asyncio.gather(nap(3), nap(1), nap(2), nap(1.5))
        return seen

    run = instance_of(naps)
    run.activate(T0, [])
    assert run.next_due_us() == T0 + 1000
    outcome = run.activate(T0 + 5000, list(run.due_timers(T0 + 5000)))
    assert bytes(closing(outcome).result) == b"[1.0,1.5,2.0,3.0]"


def test_infinity_is_a_timer_and_nan_is_not():
    @workflow.defn
    async def patient(seconds: float) -> str:
        try:
            return await asyncio.wait_for(workflow.receive("word", str), seconds)
        except ValueError as error:
            return str(error)

    run = instance_of(patient, "inf")
    run.activate(T0, [])
    assert bytes(closing(run.activate(T0, [ev.SignalReceived("word", Raw(b'["x"]'))])).result) == b'"x"'
    assert b"NaN" in bytes(closing(instance_of(patient, "nan").activate(T0, [])).result)


def test_a_second_cancel_does_not_interrupt_the_cleaning_up():
    @workflow.defn
    async def tidy() -> str:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            await act(1)
            return "compensated"
        return "?"

    run = instance_of(tidy)
    run.activate(T0, [])
    run.activate(T0, [ev.CancelRequested("a")])
    run.activate(T0, [ev.CancelRequested("b")])
    outcome = run.activate(T0, [ev.ActivityCompleted(2, Raw(b"1"))])
    assert isinstance(closing(outcome), ev.RunCompleted)


def test_a_signal_without_argument_is_received_as_none():
    @workflow.defn
    async def waits() -> str:
        return str(await workflow.receive("go"))

    run = instance_of(waits)
    run.activate(T0, [])
    assert bytes(closing(run.activate(T0, [ev.SignalReceived("go", Raw(b"[]"))])).result) == b'"None"'


def test_a_signal_handler_may_continue_as_new_and_an_update_may_not():
    @workflow.defn
    class Loop:
        @workflow.run
        async def run(self, n: int) -> None:
            await workflow.receive("never")

        @workflow.signal
        def again(self, n: int) -> None:
            workflow.continue_as_new(n)

        @workflow.update
        def change(self) -> None:
            workflow.continue_as_new(1)

    run = instance_of(Loop, 0)
    run.activate(T0, [])
    outcome = run.activate(T0, [ev.UpdateAdmitted("u", "change", Raw(b"[]"))])
    assert isinstance(outcome.commands[0], ev.UpdateFailed) and not outcome.closed
    command = closing(run.activate(T0, [ev.SignalReceived("again", Raw(b"[7]"))]))
    assert isinstance(command, ev.RunContinued) and bytes(command.input) == b"[7]"


def test_context_variables_reach_conditions_and_callbacks():
    var: contextvars.ContextVar[int] = contextvars.ContextVar("var")

    @workflow.defn
    async def contexts() -> int:
        var.set(3)
        seen: list[int] = []
        asyncio.get_running_loop().call_soon(lambda: seen.append(var.get()))
        await workflow.wait_until(lambda: seen and var.get() == 3)
        return seen[0]

    assert bytes(closing(instance_of(contexts).activate(T0, [])).result) == b"3"


def test_a_callback_that_raises_is_noted_not_fatal():
    @workflow.defn
    async def callbacks() -> str:
        task = asyncio.create_task(asyncio.sleep(0))
        task.add_done_callback(lambda t: 1 / 0)
        await task
        await asyncio.sleep(0)
        return "on"

    assert isinstance(closing(instance_of(callbacks).activate(T0, [])), ev.RunCompleted)


def test_sealing_runs_finally_blocks_that_can_issue_nothing():
    seen: list[str] = []

    @workflow.defn
    async def tidy() -> None:
        try:
            await act(1)
        finally:
            seen.append("finally")
            workflow.logger.warning("not to be heard on eviction")
            await act(2)
            seen.append("never")

    run = instance_of(tidy)
    run.activate(T0, [])
    assert run.seal() == 0
    assert seen == ["finally"]


def test_code_that_catches_everything_cannot_keep_a_sealed_run_alive():
    @workflow.defn
    async def stubborn() -> None:
        while True:
            try:
                await asyncio.sleep(1)
            except BaseException:
                pass

    run = instance_of(stubborn)
    run.activate(T0, [])
    assert run.seal() == 1


def stored(run: Instance, at: int, arrivals: list, log: list) -> None:
    outcome = run.activate(at, arrivals)
    log.append(StoredDecision(len(log) + 1, at, ev.encode_events([*arrivals, *outcome.commands])))


def test_patches_over_a_code_change():
    def version(n: int):
        @workflow.defn(name="patchy")
        async def patchy() -> str:
            if n == 1:
                await act(1)
            elif n == 2:
                await newer(2) if workflow.patched("new") else await act(1)
            elif n == 3:
                workflow.deprecate_patch("new")
                await newer(2)
            else:
                await newer(2)
            await workflow.receive("end")
            return "ok"

        return patchy.definition

    def history(definition):
        run, log = Instance(RunInfo("w", "e", "patchy", "q", 9), definition), []
        stored(run, T0, [], log)
        stored(run, T0, [ev.ActivityCompleted(1, Raw(b"1"))], log)
        return log

    info = RunInfo("w", "e", "patchy", "q", 9)
    first, second, third = history(version(1)), history(version(2)), history(version(3))
    for log, fitting, breaking in [(first, [1, 2], [3, 4]), (second, [2, 3], [1, 4]), (third, [2, 3, 4], [1])]:
        for n in fitting:
            replay(info, version(n), log)
        for n in breaking:
            with pytest.raises(errors.NonDeterminismError):
                replay(info, version(n), log)


def test_a_mismatch_names_event_expected_and_got():
    @workflow.defn(name="one")
    async def one() -> None:
        await act(1)

    @workflow.defn(name="one")
    async def other() -> None:
        await asyncio.sleep(5)

    log: list[StoredDecision] = []
    stored(instance_of(one), T0, [], log)
    with pytest.raises(errors.NonDeterminismError) as caught:
        replay(RunInfo("w", "e", "one", "q", 9), other.definition, log)
    assert caught.value.event_id == 1
    assert "ActivityScheduled" in caught.value.expected and "'act'" in caught.value.expected
    assert "TimerStarted" in caught.value.got and "patched" in str(caught.value)


def test_gathers_in_sets_keep_one_order():
    @workflow.defn
    async def sets() -> list[int]:
        waiting = {asyncio.gather(act(n)): n for n in range(6)}
        order = []
        while waiting:
            done, _ = await asyncio.wait(set(waiting), return_when=asyncio.FIRST_COMPLETED)
            order += [waiting.pop(item) for item in done]
        return order

    def go() -> bytes:
        run = instance_of(sets)
        run.activate(T0, [])
        arrivals = [ev.ActivityCompleted(n, Raw(b"0")) for n in range(1, 7)]
        return bytes(closing(run.activate(T0, arrivals)).result)

    assert len({go() for _ in range(20)}) == 1


def test_definitions_that_cannot_run_are_refused():
    with pytest.raises(errors.DefinitionError, match="as_completed"):

        @workflow.defn
        async def unordered() -> None:
            for item in asyncio.as_completed([]):
                await item

    with pytest.raises(errors.DefinitionError, match="async function"):

        @workflow.defn
        def plain() -> None: ...

    with pytest.raises(errors.DefinitionError, match="exactly one"):

        @workflow.defn
        class Empty: ...

    with pytest.raises(errors.DefinitionError, match="is async"):

        @workflow.defn
        class AsyncQuery:
            @workflow.run
            async def run(self) -> None: ...

            @workflow.query
            async def ask(self) -> int:
                return 1

    with pytest.raises(errors.DefinitionError, match="generator"):

        @activity.defn
        def generator():
            yield 1

    with pytest.raises(errors.DefinitionError, match=r"keyword.only"):

        @activity.defn
        async def keywords(*, a: int) -> None: ...

    with pytest.raises(errors.DefinitionError, match="retry"):
        activity.defn(retry=3)  # type: ignore[call-overload]
    with pytest.raises(errors.DefinitionError, match="start_to_close"):
        activity.defn(start_to_close=-1)(lambda: None)
