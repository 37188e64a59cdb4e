"""One run of one workflow: the coroutine, what it waits for, and what it asked for in this decision."""

from __future__ import annotations

import asyncio
import ctypes
import heapq
import logging
import random
import sys
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any, cast

import msgspec

from harvest.core import events as ev
from harvest.core.arrivals import APPLY, ENDINGS, Rejected
from harvest.core.loop import STEPS_PER_DECISION, DurableTimer, WorkflowLoop, driven, get_running_loop, set_running_loop
from harvest.core.program import ContinueAsNew, Outcome, Program, RunInfo, Sealed
from harvest.errors import NonDeterminismError, OperationCycle, WorkflowMisuse
from harvest.failure import Failure, failure_of
from harvest.telemetry import traces

log = logging.getLogger("harvest.workflow")
Decode = Callable[[msgspec.Raw], Any]


class EngineFuture(asyncio.Future[Any]):
    """Resolved by an arrival. Cancelling it asks the engine to cancel what it stands for."""

    def __init__(self, instance: Instance, seq: int, kind: str, name: str, decode: Decode | None) -> None:
        self.number = instance.loop.next_number()
        super().__init__(loop=instance.loop)
        self.instance, self.seq, self.kind, self.name, self.decode = instance, seq, kind, name, decode
        self.error_of: Callable[[Failure], Exception] | None = None

    def __hash__(self) -> int:
        return self.number

    def cancel(self, msg: Any | None = None) -> bool:
        if super().cancel(msg):
            self.instance.wait_cancelled(self)
            return True
        return False


class Instance:
    """See the package text. Not thread-safe; `activate`, `query` and `seal` run on the owner's loop thread."""

    def __init__(
        self,
        info: RunInfo,
        program: Program,
        *,
        history_advice: int = 10_240,
        check_activity: Callable[[str, str | None], None] | None = None,
    ) -> None:
        self.info, self.program = info, program
        self.check_activity = check_activity
        self.loop = WorkflowLoop(self, info.seed)  # type: ignore[abstract]
        self.span = traces.watch(self.loop.context)
        self.now_us = 0
        self._random: random.Random | None = None
        self.target: Any = None
        self.main: asyncio.Task[Any] | None = None
        self.pending: dict[int, EngineFuture] = {}
        self.timers: dict[int, DurableTimer] = {}
        self.timer_heap: list[tuple[int, int]] = []
        self.conditions: list[tuple[Callable[[], object], asyncio.Future[Any], Context]] = []
        self.mailbox: dict[str, deque[msgspec.Raw]] = {}
        self.receivers: dict[str, deque[asyncio.Future[Any]]] = {}
        self.children: dict[int, ev.ChildStarted] = {}
        self.patches: dict[str, bool] = {}
        self.fault: Exception | None = None
        self.cancel_reason: str | None = None
        self.replaying = False
        self.readonly = False
        self.sealed = False
        self.closed = False
        self.events = 0
        self.history_advice = history_advice
        self.had_children = False
        self._seq = 0
        self._budget = 0
        self._commands: list[ev.Command | None] = []
        self._issued: dict[int, int] = {}
        self._closing: ev.Command | None = None
        self._recorded: list[ev.Command] = []

    @property
    def random(self) -> random.Random:
        if self._random is None:
            self._random = random.Random(self.info.seed)
        return self._random

    # --- driving --------------------------------------------------------------------------------

    def activate(self, now_us: int, arrivals: list[ev.Arrival], recorded: list[ev.Command] | None = None) -> Outcome:
        """Runs one decision. With `recorded` it replays: commands must equal what history has.

        Raises `NonDeterminismError` on a mismatch and `WorkflowMisuse` (or what user code let escape
        as a `BaseException`) when the decision fails; the instance is unusable afterwards.
        """
        self.now_us = now_us if now_us > self.now_us else self.now_us
        self._commands, self._issued = [], {}
        self.replaying = recorded is not None
        self._recorded = recorded or []
        taken: list[bool] = []
        rejected: dict[int, BaseException] = {}
        many = driven.many
        previous = None if many else get_running_loop()
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(None, None)
        set_running_loop(self.loop)
        driven.instance = self
        try:
            self._budget = STEPS_PER_DECISION
            if self.main is None and not (arrivals and isinstance(arrivals[0], ENDINGS)):
                cancel = next((n for n, a in enumerate(arrivals) if isinstance(a, ev.CancelRequested)), None)
                if cancel is None:
                    self._start()
                else:  # cancelled before it began: its code never runs
                    taken = [True] * (cancel + 1)
                    self.close_with(ev.RunCancelled(cast(ev.CancelRequested, arrivals[cancel]).reason))
            if self.restless:
                self._drain()
            for index, arrival in enumerate(arrivals):
                if self.closed:
                    break
                try:
                    taken.append(APPLY[type(arrival)](self, arrival))
                except Rejected as refusal:
                    taken.append(False)
                    rejected[index] = cast(BaseException, refusal.__cause__)
                    continue
                self._drain()
            self._end_of_turn()
        except Exception as exc:
            self.fault = self.fault or exc
        except BaseException as exc:
            self._escaped(exc)
        finally:
            driven.instance = None
            if not many:
                set_running_loop(previous)
            sys.set_asyncgen_hooks(*hooks)
        if self.fault is not None:
            raise self.fault
        commands = [c for c in self._commands if c is not None]
        if self._closing is not None:
            commands.append(self._closing)
        if recorded is not None:
            commands = self._check_replay(commands, recorded, len(arrivals))
        self.events += sum(taken) + len(commands)
        return Outcome(commands, taken, rejected, self.closed)

    def _end_of_turn(self) -> None:
        """What an instance of another kind still has to say before the decision is written."""

    takes_signals = True

    def admit(self, call: ev.OperationCalled) -> None:
        """Takes a call of an operation: entities do."""
        raise Rejected from WorkflowMisuse(f"{self.info.type!r} is a workflow; operations are called on entities")

    def footprint(self, history: int) -> int:
        """Bytes that stand for its size: those of its history, as far as nothing better is known."""
        return history

    @property
    def restless(self) -> bool:
        """True when it has more to do without anything arriving."""
        return False

    def _escaped(self, exc: BaseException) -> None:
        """SystemExit and its like fail the decision; they never reach the worker."""
        fault = WorkflowMisuse(f"workflow code raised {type(exc).__name__}: {exc}", hint="raise an Exception instead")
        fault.__cause__ = exc
        self.fault = self.fault or fault

    def _start(self) -> None:
        loop = self.loop
        loop.epoch_us = self.now_us
        self.main = loop.create_task(self._main(), name="main", context=loop.context)
        self._drain()

    async def _main(self) -> None:
        try:
            self.target = self.program.create()
            command: ev.Command = ev.RunCompleted(
                self.program.encode_result(await self.program.run(self.target, self.info.input))
            )
        except Sealed:
            raise
        except ContinueAsNew as again:
            command = ev.RunContinued(again.name, again.input)
        except asyncio.CancelledError as exc:
            reason = self.cancel_reason
            command = ev.RunFailed(failure_of(exc)) if reason is None else ev.RunCancelled(reason)
        except Exception as exc:
            if _foreign(exc):
                self.fault = WorkflowMisuse(
                    f"workflow {self.info.type!r} awaited something that is not of the workflow: {exc}",
                    hint="await activities, timers, signals and children; do other I/O in an activity",
                )
                self.fault.__cause__ = exc
            elif isinstance(exc, (WorkflowMisuse, NonDeterminismError)):
                self.fault = exc
            command = ev.RunFailed(failure_of(exc))
        except BaseException as exc:
            self._escaped(exc)
            return
        self.close_with(command)

    def close_with(self, command: ev.Command) -> None:
        """The first end counts. It is written last, after what other tasks still do in this turn."""
        if self._closing is None and not self.sealed:
            self.closed, self._closing = True, command

    def issue_marker(self, command: ev.Command) -> None:
        """A command that nothing waits for."""
        self._commands.append(command)

    def _drain(self) -> None:
        """Until nothing moves: the ready queue, then conditions one at a time in registration order."""
        loop = self.loop
        self._budget = loop.run_ready(self._budget)
        while self.conditions and not self.closed and self._one_condition():
            self._budget = loop.run_ready(self._budget)

    def _one_condition(self) -> bool:
        """Takes the first condition that is settled; False when none is."""
        for item in self.conditions:
            check, future, context = item
            if not future.done():
                try:
                    if not context.run(check):
                        continue
                    future.set_result(None)
                except Exception as exc:
                    future.set_exception(exc)
            self.conditions.remove(item)
            return True
        return False

    def _check_replay(self, issued: list[ev.Command], recorded: list[ev.Command], arrivals: int) -> list[ev.Command]:
        asked = {c.patch_id for c in issued if isinstance(c, ev.VersionMarked)}
        kept = [c for c in recorded if not (isinstance(c, ev.VersionMarked) and c.deprecated and c.patch_id not in asked)]
        first = self.events + arrivals + 1
        for index, (old, new) in enumerate(zip(kept, issued, strict=False)):
            if old is not new and not ev.same_command(old, new):
                raise NonDeterminismError(first + index, ev.describe_command(old), ev.describe_command(new))
        if len(kept) > len(issued):
            raise NonDeterminismError(first + len(issued), ev.describe_command(kept[len(issued)]), "nothing")
        if len(issued) > len(kept):
            raise NonDeterminismError(first + len(kept), "nothing here", ev.describe_command(issued[len(kept)]))
        return recorded

    # --- what workflow code asks for ----------------------------------------------------------------

    def check_writable(self, what: str) -> None:
        if self.sealed:
            raise Sealed
        if self.readonly:
            raise WorkflowMisuse(f"a query or validator must not {what}", hint="make it an update or a signal")

    def _check_waiting(self, what: str) -> None:
        """Waits of a sealed run are allowed and never end: code that swallows `Sealed` has to yield somewhere,
        or it would never hand the thread back."""
        if self.readonly:
            self.check_writable(what)

    def _issue(self, seq: int, command: ev.Command) -> None:
        self._issued[seq] = len(self._commands)
        self._commands.append(command)

    def _take_back(self, seq: int) -> bool:
        """Undoes a command issued in this very decision, so that it leaves no trace."""
        index = self._issued.pop(seq, None)
        if index is None:
            return False
        self._commands[index] = None
        return True

    def _next_seq(self, what: str) -> int:
        if self.readonly:
            self.check_writable(what)
        self._seq += 1
        return self._seq

    def start_timer(
        self, delay_us: int, callback: Callable[..., object], args: tuple[Any, ...], context: Context
    ) -> DurableTimer:
        seq = self._next_seq("start a timer")
        due_us = self.now_us + delay_us
        if self.sealed:
            return DurableTimer(self.loop, seq, due_us, callback, args, context)
        timer = self.timers[seq] = DurableTimer(self.loop, seq, due_us, callback, args, context)
        heapq.heappush(self.timer_heap, (due_us, seq))
        self._issue(seq, ev.TimerStarted(seq, delay_us))
        return timer

    def timer_cancelled(self, seq: int) -> None:
        if self.timers.pop(seq, None) is not None and not self.sealed and not self._take_back(seq):
            self._commands.append(ev.TimerCancelled(seq))

    def next_due_us(self) -> int | None:
        """When the earliest timer is due, or None."""
        heap = self.timer_heap
        while heap and heap[0][1] not in self.timers:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def due_timers(self, now_us: int) -> list[ev.TimerFired]:
        """Arrivals for every timer due by `now_us`, in the order of their due time."""
        due = sorted((t.due_us, seq) for seq, t in self.timers.items() if t.due_us <= now_us)
        return [ev.TimerFired(seq) for _, seq in due]

    def start_activity(self, name: str, input: msgspec.Raw, options: ev.ActivityOptions, decode: Decode | None) -> EngineFuture:
        seq = self._next_seq("start an activity")
        if self.check_activity is not None:
            try:
                self.check_activity(name, options.queue)
            except WorkflowMisuse as exc:
                self.fault = exc
                raise
        future = EngineFuture(self, seq, "activity", name, decode)
        if self.sealed:
            return future
        self.pending[seq] = future
        self._issue(seq, ev.ActivityScheduled(seq, name, input, options))
        return future

    def start_child(self, make: Callable[[int], ev.ChildStarted], decode: Decode | None) -> EngineFuture:
        command = make(self._next_seq("start a child workflow"))
        seq = command.seq
        future = EngineFuture(self, seq, "child", command.workflow_id, decode)
        if self.sealed:
            return future
        self.pending[seq] = future
        self.children[seq] = command
        self.had_children = True
        self._issue(seq, command)
        return future

    def send_external(self, make: Callable[[int], ev.ExternalSignalSent | ev.ExternalCancelSent]) -> EngineFuture:
        command = make(self._next_seq("signal another workflow"))
        future = EngineFuture(self, command.seq, "external", command.workflow_id, None)
        if self.sealed:
            return future
        self.pending[command.seq] = future
        self._issue(command.seq, command)
        return future

    def call_entity(
        self,
        make: Callable[[int, tuple[str, ...]], ev.EntityCallSent],
        decode: Decode,
        error_of: Callable[[Failure], Exception],
    ) -> EngineFuture:
        """Calls an operation of an entity; `make(seq, path)` gets who waits for it, outermost first.

        Raises `OperationCycle` when the entity waits for this very call.
        """
        path = self.call_path()
        command = make(self._next_seq("call an entity"), path)
        if command.workflow_id in path:
            raise OperationCycle(command.workflow_id, list(path))
        future = EngineFuture(self, command.seq, "call", f"{command.entity}.{command.name}", decode)
        future.error_of = error_of
        if self.sealed:
            return future
        self.pending[command.seq] = future
        self._issue(command.seq, command)
        return future

    def call_path(self) -> tuple[str, ...]:
        """Who waits for what is called now."""
        parent = self.info.parent_workflow_id
        return (self.info.workflow_id,) if parent is None else (parent, self.info.workflow_id)

    def wait_cancelled(self, future: EngineFuture) -> None:
        """User code gave up waiting: what is under way is asked to stop (what was not sent never leaves)."""
        if self.sealed or future.seq not in self.pending:
            return
        if future.kind == "external":
            return
        del self.pending[future.seq]
        child = self.children.pop(future.seq, None)
        if self._take_back(future.seq) or future.kind == "call":  # a call that was sent runs to its end
            return
        if child is None:
            self._commands.append(ev.ActivityCancelRequested(future.seq))
        elif child.parent_close != "abandon":
            self._commands.append(ev.ChildCancelRequested(future.seq, child.workflow_id))

    def wait_condition(self, check: Callable[[], object]) -> asyncio.Future[Any]:
        self._check_waiting("wait")
        future = self.loop.create_future()
        self.conditions.append((check, future, copy_context()))
        return future

    def receive(self, name: str) -> asyncio.Future[Any]:
        """A future for the next signal of this name that no handler takes."""
        self._check_waiting("wait for a signal")
        future = self.loop.create_future()
        waiting = self.mailbox.get(name)
        if waiting:
            future.set_result(waiting.popleft())
        else:
            self.receivers.setdefault(name, deque()).append(future)
        return future

    def side_effect(self, make: Callable[[], msgspec.Raw]) -> msgspec.Raw:
        """`make()` once; its value is read from history on replay."""
        self.check_writable("record a side effect")
        seq = self._next_seq("record a side effect")
        for recorded in self._recorded:
            if isinstance(recorded, ev.SideEffectRecorded) and recorded.seq == seq:
                self._issue(seq, recorded)
                return recorded.value
        try:
            value = make()
        except Exception as exc:
            self.fault = WorkflowMisuse(
                f"a side effect raised {type(exc).__name__}: {exc}", hint="what can fail is an activity"
            )
            self.fault.__cause__ = exc
            raise self.fault from exc
        self._issue(seq, ev.SideEffectRecorded(seq, value))
        return value

    def patched(self, patch_id: str, *, deprecated: bool = False) -> bool:
        """True where this run may take the new path; decided once per run and recorded."""
        known = self.patches.get(patch_id)
        if known is None:
            self.check_writable("decide a patch")
            marker: ev.Command | None = None
            if self.replaying:
                marker = next((c for c in self._recorded if isinstance(c, ev.VersionMarked) and c.patch_id == patch_id), None)
            else:
                marker = ev.VersionMarked(patch_id, deprecated)
            if marker is not None:
                self._commands.append(marker)
            known = self.patches[patch_id] = marker is not None
        return known

    def upsert_attributes(self, encoded: msgspec.Raw) -> None:
        self.check_writable("upsert search attributes")
        self._commands.append(ev.AttributesUpserted(encoded))

    # --- reading and leaving ------------------------------------------------------------------------

    def query(self, name: str, input: msgspec.Raw) -> msgspec.Raw:
        """Runs a query handler without footprint: it can read, wait for nothing and change nothing durable."""
        handler = self.program.query(name)
        return self._reading(lambda: handler.encode(self.loop.context.run(handler.invoke, self.target, input)))

    def _reading(self, read: Callable[[], msgspec.Raw]) -> msgspec.Raw:
        """Runs code of the user that must change nothing."""
        previous = get_running_loop()
        set_running_loop(self.loop)
        driven.instance = self
        self.readonly = True
        try:
            return read()
        finally:
            self.readonly = False
            driven.instance = None
            set_running_loop(previous)

    def unread_signals(self) -> list[tuple[str, msgspec.Raw]]:
        """Ingested signals that no code has read (R-7), by name and in order."""
        return [(name, item) for name, items in self.mailbox.items() for item in items]

    def note_background_failure(self, context: dict[str, Any]) -> None:
        """A task failed and nobody awaited it: logged once, as asyncio would."""
        if not self.replaying and not self.sealed:
            exc = context.get("exception")
            log.warning("%s %s: %s: %r", self.info.type, self.info.workflow_id, context.get("message"), exc)

    def seal(self) -> int:
        """Takes the run out of memory: every coroutine is closed here, on this thread, issuing nothing.

        `Sealed` is thrown into each; what they wait for in their `finally` blocks never comes, and the next
        throw ends that too.

        Returns how many coroutines refused to end.
        """
        if self.sealed:
            return 0
        self.sealed = True
        survivors = 0
        previous = get_running_loop()
        set_running_loop(self.loop)
        driven.instance = self
        try:
            for task in self.loop.tasks:
                if not task.done():
                    survivors += close_task(task)
            self.loop.ready.clear()
        finally:
            driven.instance = None
            set_running_loop(previous)
        return survivors


# What asyncio says of a future, of a lock, and of a future that two loops awaited.
_FOREIGN_SIGNS = ("attached to a different loop", "bound to a different event loop", "await wasn't used with future")


def _foreign(exc: BaseException) -> bool:
    """Did the code await something of another event loop, perhaps within a group?"""
    if isinstance(exc, BaseExceptionGroup):
        return any(map(_foreign, exc.exceptions))
    text = str(exc)
    return isinstance(exc, RuntimeError) and any(sign in text for sign in _FOREIGN_SIGNS)


def close_task(task: asyncio.Task[Any]) -> int:
    coro = cast(Any, task.get_coro())
    for _ in range(10):
        try:
            coro.throw(Sealed())
        except StopIteration:
            return 0
        except BaseException:
            return 0
    # Code that swallows everything must never be collected: closing it would run it once more, anywhere.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(coro))
    return 1


def current_instance() -> Instance | None:
    """The run whose code is executing on this thread, or None outside workflows."""
    return driven.instance
