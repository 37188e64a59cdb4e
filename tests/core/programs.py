"""Random workflow programs, and a random world around them, for the kernel alone."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
from hypothesis import strategies as st

from harvest import activity, errors, workflow
from harvest.core import events as ev
from harvest.core.instance import Instance
from harvest.core.program import RunInfo
from harvest.core.replay import StoredDecision

Raw = msgspec.Raw
START_US = 1_700_000_000_000_000

leaf = st.one_of(
    st.tuples(st.just("sleep"), st.integers(0, 30)),
    st.tuples(st.just("act"), st.sampled_from(["ok", "bad"])),
    st.tuples(st.just("child"), st.sampled_from(["ok", "bad"])),
    st.tuples(st.just("receive"), st.sampled_from(["a", "b"])),
    st.tuples(st.just("until"), st.integers(0, 3)),
    st.tuples(st.just("effect"), st.integers(0, 9)),
    st.tuples(st.just("patched"), st.sampled_from(["p", "q"])),
    st.tuples(st.just("external"), st.sampled_from(["here", "gone"])),
    st.tuples(st.just("dice"), st.integers(1, 6)),
    st.tuples(st.just("locked"), st.integers(0, 5)),
)


def branches(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=4)
    return st.one_of(
        st.tuples(st.just("seq"), several),
        st.tuples(st.just("gather"), several),
        st.tuples(st.just("group"), several),
        st.tuples(st.just("race"), several),
        st.tuples(st.just("completed"), several),
        st.tuples(st.just("timeout"), st.integers(1, 25), inner),
        st.tuples(st.just("wait_for"), st.integers(1, 25), inner),
        st.tuples(st.just("shield"), inner),
        st.tuples(st.just("finally"), inner, inner),
    )


programs = st.recursive(leaf, branches, max_leaves=14)


@activity.defn
async def act(kind: str) -> str:
    return kind


@workflow.defn
async def kid(kind: str) -> str:
    return kind


@workflow.defn
class Runner:
    """Interprets a program; `trace` records what happened in which order."""

    def __init__(self) -> None:
        self.trace: list[str] = []
        self.count = 0
        self.lock = asyncio.Lock()

    @workflow.run
    async def run(self, program: list[Any]) -> list[str]:
        await self.step(program)
        return self.trace

    @workflow.signal
    async def bump(self, by: int) -> None:
        self.count += by
        await asyncio.sleep(0.002)
        self.trace.append(f"bumped {self.count}")

    @workflow.update
    async def ask(self, n: int) -> int:
        await act("ok")
        self.trace.append(f"asked {n}")
        return self.count

    @ask.validator
    def may_ask(self, n: int) -> None:
        if n % 2:
            raise ValueError("odd")

    async def step(self, node: list[Any]) -> Any:
        kind, *rest = node
        try:
            result = await getattr(self, f"do_{kind}")(*rest)
        except (errors.HarvestError, TimeoutError, ExceptionGroup) as error:
            result = type(error).__name__
        self.trace.append(f"{kind}={result}@{workflow.now().timestamp():.3f}")
        return result

    async def do_sleep(self, ms: int) -> None:
        await asyncio.sleep(ms / 1000)

    async def do_act(self, kind: str) -> str:
        return await act(kind)

    async def do_child(self, kind: str) -> str:
        return await kid(kind)

    async def do_receive(self, name: str) -> int:
        return await workflow.receive(name, int)

    async def do_until(self, n: int) -> int:
        await workflow.wait_until(lambda: self.count >= n)
        return self.count

    async def do_effect(self, n: int) -> float:
        return workflow.side_effect(lambda: n + random.random())

    async def do_patched(self, name: str) -> bool:
        if workflow.patched(name):
            await asyncio.sleep(0.001)
            return True
        return False

    async def do_external(self, to: str) -> None:
        await workflow.external(to).signal("x", 1)

    async def do_dice(self, n: int) -> int:
        await asyncio.sleep(0)
        return workflow.random().randint(0, n)

    async def do_locked(self, ms: int) -> None:
        async with self.lock:
            await asyncio.sleep(ms / 1000)

    async def do_seq(self, nodes: list[Any]) -> int:
        for node in nodes:
            await self.step(node)
        return len(nodes)

    async def do_gather(self, nodes: list[Any]) -> int:
        return len(await asyncio.gather(*(self.step(n) for n in nodes), return_exceptions=len(nodes) % 2 == 0))

    async def do_group(self, nodes: list[Any]) -> int:
        async with asyncio.TaskGroup() as group:
            for node in nodes:
                group.create_task(self.step(node))
        return len(nodes)

    async def do_race(self, nodes: list[Any]) -> int:
        tasks = {asyncio.create_task(self.step(n)) for n in nodes}
        done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest)
        return len(done)

    async def do_completed(self, nodes: list[Any]) -> list[str]:
        return [str(result) async for result in workflow.as_completed([self.step(n) for n in nodes])]

    async def do_timeout(self, ms: int, node: list[Any]) -> Any:
        async with asyncio.timeout(ms / 1000):
            return await self.step(node)

    async def do_wait_for(self, ms: int, node: list[Any]) -> Any:
        return await asyncio.wait_for(self.step(node), ms / 1000)

    async def do_shield(self, node: list[Any]) -> Any:
        return await asyncio.shield(asyncio.ensure_future(self.step(node)))

    async def do_finally(self, node: list[Any], last: list[Any]) -> Any:
        try:
            return await self.step(node)
        finally:
            await self.step(last)


DEFINITION = Runner.__harvest_definition__  # type: ignore[attr-defined]


class Strict(Instance):
    """A replay that accepts nothing but the very same commands, payloads included."""

    def _check_replay(self, issued: Any, recorded: Any, arrivals: int) -> Any:
        assert issued == recorded, f"\nissued   {issued}\nrecorded {recorded}"
        return super()._check_replay(issued, recorded, arrivals)


def info_for(program: Any, seed: int = 77) -> RunInfo:
    return RunInfo("w", "e", "Runner", "q", seed, Raw(msgspec.json.encode([program])))


class World:
    """Answers the commands of one run, in random batches at random times."""

    def __init__(self, program: Any, dice: random.Random, *, cold_every: int = 1) -> None:
        self.dice, self.cold_every = dice, cold_every
        self.info = info_for(program)
        self.instance = Instance(self.info, DEFINITION)
        self.now = START_US
        self.decisions: list[StoredDecision] = []
        self.coming: list[tuple[int, int, ev.Arrival]] = []
        self.order = 0
        self.updates = 0

    def later(self, arrival: ev.Arrival, within_ms: int = 20) -> None:
        self.order += 1
        self.coming.append((self.now + self.dice.randint(0, within_ms) * 1000, self.order, arrival))

    def react(self, commands: list[ev.Command]) -> None:
        for command in commands:
            if isinstance(command, ev.ActivityScheduled):
                if command.input == Raw(b'["ok"]') or bytes(command.input) == b'["ok"]':
                    self.later(ev.ActivityCompleted(command.seq, Raw(b'"ok"')))
                else:
                    self.later(ev.ActivityFailed(command.seq, ev.Failure("bad", "Bad")))
            elif isinstance(command, ev.ChildStarted):
                if bytes(command.input) == b'["ok"]':
                    self.later(ev.ChildCompleted(command.seq, Raw(b'"ok"')))
                else:
                    self.later(ev.ChildFailed(command.seq, ev.Failure("bad", "Bad")))
            elif isinstance(command, ev.ExternalSignalSent):
                lost = ev.Failure("no run", "WorkflowNotFound") if command.workflow_id == "gone" else None
                self.later(ev.ExternalDone(command.seq, lost), 5)

    def outside(self) -> None:
        """Now and then somebody writes to the run."""
        roll = self.dice.random()
        if roll < 0.25:
            self.later(ev.SignalReceived(self.dice.choice("ab"), Raw(b"[5]")))
        elif roll < 0.45:
            self.later(ev.SignalReceived("bump", Raw(b"[1]")))
        elif roll < 0.55:
            self.updates += 1
            self.later(ev.UpdateAdmitted(f"u{self.updates}", "ask", Raw(b"[%d]" % self.dice.randint(0, 3))))
        elif roll < 0.58:
            self.later(ev.CancelRequested("enough"))

    def batch(self) -> list[ev.Arrival]:
        """Everything that is due at the next moment something happens, and perhaps a little more."""
        due = self.instance.next_due_us()
        moments = [at for at, _, _ in self.coming] + ([] if due is None else [due])
        if not moments:
            return []
        self.now = max(self.now, min(moments)) + self.dice.choice([0, 0, 1000, 3000, 10_000])
        arrived = sorted(item for item in self.coming if item[0] <= self.now)
        self.coming = [item for item in self.coming if item[0] > self.now]
        return [arrival for _, _, arrival in arrived] + list(self.instance.due_timers(self.now))

    def decide(self, arrivals: list[ev.Arrival]) -> None:
        outcome = self.instance.activate(self.now, arrivals)
        kept = [a for a, keep in zip(arrivals, outcome.taken, strict=False) if keep]
        events: list[ev.Event] = [*kept, *outcome.commands]
        self.decisions.append(StoredDecision(len(self.decisions) + 1, self.now, ev.encode_events(events)))
        if len(self.decisions) % self.cold_every == 0 or outcome.closed:
            self.replay_cold()
        self.react(outcome.commands)

    def replay_cold(self) -> Instance:
        cold = Strict(self.info, DEFINITION)
        for stored in self.decisions:
            arrivals, commands = ev.decode_events(stored.events)
            cold.activate(stored.at_us, arrivals, commands)
        cold.replaying = False
        assert sorted(cold.pending) == sorted(self.instance.pending)
        assert cold.next_due_us() == self.instance.next_due_us()
        assert cold.target is None or cold.target.trace == self.instance.target.trace
        assert cold.closed == self.instance.closed
        assert cold.seal() == 0
        return cold

    def run(self, limit: int = 60) -> None:
        self.decide([])
        while not self.instance.closed and len(self.decisions) < limit:
            self.outside()
            arrivals = self.batch()
            if not arrivals:
                self.later(ev.SignalReceived(self.dice.choice(["a", "b", "bump"]), Raw(b"[1]")))
                continue
            self.decide(arrivals)
        self.instance.seal()
