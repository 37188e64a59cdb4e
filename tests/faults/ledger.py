"""Traffic with a ledger of what was acknowledged, and the proof that history has it exactly once (F-1)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from collections import Counter
from dataclasses import dataclass, field

import msgspec

from harvest import Client, errors
from harvest.core.replay import decode_history
from harvest.testing import Replayer
from tests.faults import flows
from tests.faults.flows import FAST, Ledger, Till, pay_in

AWAY = (errors.HubUnreachable, errors.NoAnswer, errors.QueryTimeout, TimeoutError)


@dataclass
class Book:
    """`sent` was acknowledged; `maybe` may have arrived, its sender was told so."""

    sent: list[int] = field(default_factory=list)
    maybe: list[int] = field(default_factory=list)


@dataclass
class Counts:
    """What the traffic did."""

    runs: int = 0
    signals: int = 0
    updates: int = 0
    operations: int = 0
    unsure: int = 0
    longest_wait: float = 0.0
    violations: list[str] = field(default_factory=list)

    def covers(self, least: Counts) -> bool:
        return all(getattr(self, kind) >= getattr(least, kind) for kind in ("runs", "signals", "updates", "operations"))


class Traffic:
    """Conversations, `width` at a time: start a run, talk to it, close it, and audit it."""

    def __init__(self, client: Client, dice: random.Random, *, width: int, rounds: int = 4, messages: int = 25) -> None:
        self.client, self.dice, self.width, self.rounds, self.messages = client, dice, width, rounds, messages
        self.counts = Counts()
        self.replayer = Replayer([flows])
        self._ending = asyncio.Event()
        self._answered = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []
        self._number = 0

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._converse_on(n)) for n in range(self.width)]

    def check(self) -> None:
        """Raises what ended a conversation."""
        for task in self._tasks:
            if task.done() and not self._ending.is_set():
                task.result()

    async def answered(self, number: int = 2) -> None:
        """Waits until so many more messages were acknowledged: however slow the machine, faults and work take turns."""
        enough = self._acknowledged + number
        while self._acknowledged < enough:
            self.check()
            async with self._answered:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._answered.wait_for(lambda: self._acknowledged >= enough), 5)

    async def finish(self, least: Counts | None = None) -> Counts:
        """Goes on until there was at least this much of each, then lets the conversations that run come to their end."""
        least = least or Counts()
        while not self.counts.covers(least):
            await self.answered()
        self._ending.set()
        await asyncio.gather(*self._tasks)
        return self.counts

    @property
    def _acknowledged(self) -> int:
        return self.counts.signals + self.counts.updates + self.counts.operations

    async def _took(self, *, signals: int = 0, updates: int = 0, operations: int = 0) -> None:
        self.counts.signals += signals
        self.counts.updates += updates
        self.counts.operations += operations
        async with self._answered:
            self._answered.notify_all()

    async def _converse_on(self, lane: int) -> None:
        dice = random.Random(self.dice.random())
        while not self._ending.is_set():
            self._number += 1
            if lane % 2:
                await self._trade(f"till-{self._number}", dice)
            else:
                await self._converse(f"talk-{self._number}", dice)

    async def _trade(self, name: str, dice: random.Random) -> None:
        """The life of an entity: each acknowledged operation is in its state once, whoever called it."""
        till, book = self.client.entity(Till, name), Book()
        for n in range(1, dice.randint(3, self.messages)):
            kind = dice.random()
            operation = Till.take if kind < 0.3 else Till.count_and_take
            if kind < 0.6:
                await self._surely(lambda n=n, o=operation: till.call(o, n, idempotency_key=f"k{n}", timeout=5))
                book.sent.append(n)
            elif kind < 0.7:
                try:
                    await self._surely(lambda n=n: till.call(Till.count_and_take, -n, idempotency_key=f"k{n}", timeout=5))
                except errors.OperationFailed:
                    pass
            elif kind < 0.9:
                try:
                    await till.call(operation, n, timeout=5)
                    book.sent.append(n)
                except AWAY:
                    book.maybe.append(n)
                    self.counts.unsure += 1
            else:
                run = f"{name}-pays-{n}"
                await self._surely(lambda n=n, run=run: self.client.start(pay_in, name, n, id=run, conflict="use_existing"))
                await self._surely(lambda run=run: self.client.handle(run).result(timeout=30))
                book.sent.append(n)
            await self._took(operations=1)
            await asyncio.sleep(dice.uniform(0, 0.04))
        state = await self._surely(lambda: till.state(timeout=5))
        found = Counter(state.taken)
        for n in Counter(book.sent) | found:
            low = book.sent.count(n)
            if not low <= found[n] <= low + (n in book.maybe):
                self.counts.violations.append(f"{name}: operation {n} acknowledged {low} times, in the state {found[n]} times")
        exported = await self._surely(lambda: self.client.handle(till.id).export_history())
        verdict = self.replayer.replay_file(exported)
        if not verdict.fits:
            self.counts.violations.append(f"{name}: its history does not replay: {verdict.error}")
        try:
            await self._surely(lambda: till.delete(timeout=5))
        except errors.EntityNotFound:
            pass  # the answer to the first try was lost
        self.counts.runs += 1

    async def _converse(self, name: str, dice: random.Random) -> None:
        book = Book()
        fails = dice.choice((0, 0, 2))
        start = functools.partial(self.client.start, Ledger, self.rounds, fails, id=name, conflict="use_existing", retry=FAST)
        await self._surely(start)
        handle = self.client.handle(name, Ledger)
        for n in range(1, dice.randint(3, self.messages)):
            # The next attempt sees every signal again, and no update that was answered.
            kind = dice.random() * (0.7 if fails else 1.0)
            if kind < 0.4:
                await self._surely(lambda n=n: handle.signal(Ledger.put, n, idempotency_key=f"k{n}"))
                book.sent.append(n)
            elif kind < 0.7:
                try:
                    await handle.signal(Ledger.put, n)
                    book.sent.append(n)
                except AWAY:
                    book.maybe.append(n)
                    self.counts.unsure += 1
            else:
                await self._surely(lambda n=n: handle.update(Ledger.add, n, update_id=f"u{n}", timeout=5))
                book.sent.append(n)
            await self._took(signals=int(kind < 0.7), updates=int(kind >= 0.7))
            await asyncio.sleep(dice.uniform(0, 0.04))
        await self._surely(lambda: handle.signal(Ledger.close, idempotency_key="close"))
        result = await self._surely(lambda: handle.result(timeout=60))
        attempts = [run.state for run in await self._surely(handle.chain)]
        if attempts != ["FAILED"] * fails + ["COMPLETED"]:
            self.counts.violations.append(f"{name}: its attempts are {attempts}")
        await self._audit(name, book, Counter(result))
        self.counts.runs += 1

    async def _surely(self, call):
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            try:
                result = await call()
                self.counts.longest_wait = max(self.counts.longest_wait, loop.time() - began)
                return result
            except AWAY as exc:
                if loop.time() - began > 120:
                    raise AssertionError(f"no answer for two minutes: {exc}") from exc
                await asyncio.sleep(0.02)

    async def _audit(self, name: str, book: Book, found: Counter[int]) -> None:
        sent = Counter(book.sent)
        for n in sent | found:
            low = sent[n]
            high = low + (n in book.maybe)
            if not low <= found[n] <= high:
                self.counts.violations.append(f"{name}: message {n} acknowledged {low} times, in the result {found[n]} times")
        exported = await self._surely(lambda: self.client.handle(name).export_history())
        verdict = self.replayer.replay_file(exported)
        if not verdict.fits:
            self.counts.violations.append(f"{name}: its history does not replay: {verdict.error}")
        arrivals: Counter[int] = Counter()
        for decision in decode_history(exported).decisions:
            for event in msgspec.json.decode(decision.events):
                if event["type"] in ("SignalReceived", "UpdateAdmitted") and event.get("name") in ("put", "add"):
                    arrivals[event["input"][0]] += 1
        for n in sent | arrivals:
            if not sent[n] <= arrivals[n] <= sent[n] + (n in book.maybe):
                self.counts.violations.append(
                    f"{name}: message {n} acknowledged {sent[n]} times, in history {arrivals[n]} times"
                )
