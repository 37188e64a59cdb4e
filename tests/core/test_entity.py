"""The kernel's entity: warm and cold agree, whatever is under way, whatever was recorded (E-1, E-2)."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from harvest import activity, entity, workflow
from harvest.core import entity as kernel
from harvest.core import events as ev
from harvest.core.entity import EntityInstance, rebuild
from harvest.core.program import RunInfo
from harvest.core.replay import StoredDecision
from harvest.definitions.registry import Registry, definition_of
from harvest.errors import DefinitionError, NonDeterminismError


class Books(BaseModel):
    balance: int = 0
    log: list[str] = []
    dice: dict[str, int] = {}


@activity.defn
async def check(n: int) -> int: ...


@entity.defn
class Account:
    state: Books

    @entity.operation
    def put(self, n: int) -> int:
        self.state.balance += n
        return self.state.balance

    @entity.operation
    async def move(self, n: int) -> int:
        before = self.state.balance
        self.state.log.append(f"moving {n}")
        try:
            async with asyncio.timeout(5):
                a, b = await asyncio.gather(check(n), check(n + 1))
        except TimeoutError:
            a = b = 0
        self.state.dice[str(n)] = workflow.random().randint(1, 6)
        if workflow.patched("late"):
            await asyncio.sleep(n % 3)
        self.state.balance = before + a + b
        return self.state.balance

    @entity.operation
    async def fail(self, n: int) -> None:
        self.state.balance = -1
        if n % 2:
            await check(n)
        raise ValueError(f"no {n}")

    @entity.operation
    async def untidy(self, n: int) -> None:
        asyncio.ensure_future(asyncio.sleep(50))
        workflow.start_activity(check, n)
        self.state.log.append("untidy")

    @entity.query
    def balance(self) -> int:
        return self.state.balance


PROGRAM = definition_of(Account)
Registry([Account, check])
INFO = RunInfo(workflow_id="@Account:a", execution_id="x", type="Account", queue="q", seed=7)


class World:
    """Feeds an entity with calls and results, keeps its history, and rebuilds it cold whenever asked."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.now, self.calls, self.events = 1_000_000, 0, 0
        self.stored: list[StoredDecision] = []
        self.open: list[int] = []
        self.answers: dict[str, object] = {}
        self.live = rebuild(INFO, PROGRAM, [])

    def step(self) -> None:
        arrivals: list[ev.Arrival] = []
        for _ in range(self.dice.choice([0, 1, 1, 2, 5])):
            self.calls += 1
            name = self.dice.choice(["put", "put", "move", "move", "fail", "untidy"])
            arrivals.append(ev.OperationCalled(str(self.calls), name, msgspec.Raw(f"[{self.dice.randint(0, 9)}]".encode())))
        for seq in [s for s in self.open if self.dice.random() < 0.5]:
            self.open.remove(seq)
            arrivals.append(ev.ActivityCompleted(seq, msgspec.Raw(b"%d" % self.dice.randint(0, 50))))
        self.now += self.dice.choice([0, 1000, 700_000, 3_000_000])
        arrivals += self.live.due_timers(self.now)
        if not arrivals and not self.live.restless:
            return
        self.decide(arrivals)

    def decide(self, arrivals: list[ev.Arrival]) -> None:
        outcome = self.live.activate(self.now, arrivals)
        events = [*[a for a, keep in zip(arrivals, outcome.taken, strict=True) if keep], *outcome.commands]
        if events:
            number = len(self.stored) + 1
            self.stored.append(StoredDecision(number, self.now, ev.encode_events(events), self.events + 1))
            self.events += len(events)
        for command in outcome.commands:
            if isinstance(command, ev.ActivityScheduled):
                self.open.append(command.seq)
            elif isinstance(command, ev.ActivityCancelRequested) and command.seq in self.open:
                self.open.remove(command.seq)
            elif isinstance(command, (ev.OperationCompleted, ev.OperationFailed)):
                assert command.update_id not in self.answers
                self.answers[command.update_id] = command

    def cold(self) -> EntityInstance:
        """From the last recorded state on, as it is read from the hub."""
        first = 0
        for number, row in enumerate(self.stored):
            if any(isinstance(c, ev.StateRecorded) for c in ev.decode_events(row.events)[1]):
                first = number
        return rebuild(INFO, PROGRAM, self.stored[first:])


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([2, 6, 1_000]), st.sampled_from([1, 3, 7]))
def test_warm_and_cold_agree(seed, record_events, cold_every):
    monkey = pytest.MonkeyPatch()
    monkey.setattr(kernel, "RECORD_EVENTS", record_events)
    world = World(seed)
    try:
        for n in range(40):
            world.step()
            if n % cold_every:
                continue
            cold = world.cold()
            live = world.live
            assert cold.data == live.data and cold.fields == live.fields
            assert [c.update_id for c in cold.unanswered()] == [c.update_id for c in live.unanswered()]
            assert set(cold.pending) <= set(live.pending)
            assert cold.next_due_us() == live.next_due_us() and cold.restless == live.restless
            assert cold._seq == live._seq
            live.seal()
            world.live = cold
        for _ in range(500):  # everything that was called ends
            if not world.live.unanswered():
                break
            world.now += 6_000_000
            done, world.open = world.open, []
            world.decide([*(ev.ActivityCompleted(seq) for seq in done), *world.live.due_timers(world.now)])
        assert sorted(world.answers, key=int) == [str(n + 1) for n in range(world.calls)]
    finally:
        world.live.seal()
        monkey.undo()


def called(n: int, name: str, *args: int) -> ev.OperationCalled:
    return ev.OperationCalled(str(n), name, msgspec.json.encode(args) and msgspec.Raw(msgspec.json.encode(args)))


def test_a_completed_operation_is_never_run_again():
    """The code may change: what was done stays done."""
    world = World(1)
    world.decide([called(1, "put", 5), called(2, "put", 6)])

    @entity.defn(name="Account")
    class Changed:
        state: Books

        @entity.operation
        def put(self, n: int) -> int:
            raise AssertionError("it ran again")

    Registry([Changed])
    assert msgspec.json.decode(rebuild(INFO, definition_of(Changed), world.stored).data)["balance"] == 11


def test_an_operation_under_way_is_replayed_and_checked():
    world = World(1)
    world.decide([called(1, "put", 5), called(2, "move", 6)])

    @entity.defn(name="Account")
    class Changed:
        state: Books

        @entity.operation
        async def move(self, n: int) -> int:
            await asyncio.sleep(1)
            return 0

    Registry([Changed])
    with pytest.raises(NonDeterminismError, match="event 5: history has TimerStarted"):
        rebuild(INFO, definition_of(Changed), world.stored)


class Old(BaseModel):
    name: str = ""


class New(BaseModel):
    first: str = ""
    last: str = ""


def person(version: int):
    if version == 1:

        @entity.defn(name="Person")
        class Person:
            state: Old

            @entity.operation
            def rename(self, name: str) -> None:
                self.state.name = name

        return definition_of(Person)

    @entity.defn(name="Person", version=2)
    class Person2:
        state: New

        @entity.operation
        def marry(self, last: str) -> str:
            self.state.last = last
            return f"{self.state.first} {self.state.last}"

        @entity.operation
        async def think(self) -> None:
            await check(1)

        @staticmethod
        @entity.upgrade
        def upgrade(stored: dict, version: int) -> dict:
            assert version == 1
            first, _, last = stored["name"].partition(" ")
            return {"first": first, "last": last}

    return definition_of(Person2)


def test_a_state_of_an_earlier_version_is_brought_up():
    old, new = person(1), person(2)
    Registry([old])
    world = World(1)
    world.live = rebuild(INFO, old, [])
    world.decide([ev.OperationCalled("1", "rename", msgspec.Raw(b'["Ada Byron"]'))])
    for _ in range(2):  # it is only recorded with an operation
        world.live = rebuild(INFO, new, world.stored)
        assert world.live.data == b'{"first":"Ada","last":"Byron"}'
    world.decide([ev.OperationCalled("2", "think", msgspec.Raw(b"[]"))])
    assert rebuild(INFO, new, world.stored).data == b'{"first":"Ada","last":"Byron"}'
    world.decide([ev.ActivityCompleted(1), ev.OperationCalled("3", "marry", msgspec.Raw(b'["Lovelace"]'))])
    assert world.answers["3"].result == msgspec.Raw(b'"Ada Lovelace"')
    assert rebuild(INFO, new, world.stored).data == b'{"first":"Ada","last":"Lovelace"}'
    with pytest.raises(DefinitionError, match="version 2, this code knows 1"):
        rebuild(INFO, old, world.stored)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: entity.defn(lambda: None), "expected a class"),
        (lambda: entity.defn(type("E", (), {})), "no operation"),
        (lambda: entity.defn(name="a:b")(Account), "must not contain ':'"),
        (lambda: entity.defn(version=0)(type("E", (), {"put": Account.put})), "version must be"),
        (lambda: entity.defn(version=2)(type("E", (), {"put": Account.put})), "needs an upgrade"),
        (lambda: entity.operation(raises=(ValueError,)), "subclasses of ApplicationError"),
        (lambda: Registry([entity.defn(type("E", (), {"put": Account.put}))]), "state must be annotated"),
        (
            lambda: Registry(
                [entity.defn(indexes=["size"])(type("E", (), {"put": Account.put, "__annotations__": {"state": Books}}))]
            ),
            "indexes names 'size'",
        ),
    ],
)
def test_what_cannot_be_an_entity_is_said_at_once(make, problem):
    with pytest.raises(DefinitionError, match=problem):
        make()
