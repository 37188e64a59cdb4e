"""One entity: operations run one at a time over a state, and each leaves its result and what it changed.

A completed operation is never run again: history has what it changed, so that a change of code cannot change the
past. `rebuild` folds those changes; only an operation that was under way is replayed, like a workflow, from the event
after the last completed one.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Any, cast

import msgspec

from harvest.core import events as ev
from harvest.core.arrivals import Rejected, no_continuing
from harvest.core.instance import Instance, close_task
from harvest.core.loop import STEPS_PER_DECISION
from harvest.core.program import BrokenOff, EntityProgram, OperationHandler, Program, RunInfo, Sealed
from harvest.core.replay import StoredDecision
from harvest.errors import WorkflowMisuse
from harvest.failure import Failure, failure_of

DELETE = "@delete"
STATE = "@state"
SNAPSHOT = "@snapshot"
GONE = "EntityDeleted"
"""Failure type of a call that reached an entity which was deleted before it began: calling again is safe."""
RECORD_BYTES = 8_192
RECORD_EVENTS = 200
"""The state is recorded once the events since the last time take this many bytes (or twice those of the state), or
are this many: what a cold load reads stays small, and what is written stays in proportion."""

Fields = dict[str, msgspec.Raw]
_fields = msgspec.json.Decoder(Fields)


def gone() -> Failure:
    return Failure("the entity was deleted before the operation began", GONE, non_retryable=True)


class Base(msgspec.Struct, gc=False):
    """Where an instance begins: a state between two operations. `version` None: it has never been recorded."""

    data: bytes
    version: int | None = None
    seq: int = 0
    waiting: tuple[ev.OperationCalled, ...] = ()
    events: int = 0
    written: int = 0
    updated_us: int = 0
    recorded: bool = False


class Recorded(msgspec.Struct, gc=False):
    """A state, the last event it comes from, and when it last changed (microseconds)."""

    data: bytes
    event_id: int
    updated_us: int


class EntityInstance(Instance):
    """Drives the operations of one entity. `data` is its state after the last completed operation, as JSON."""

    def __init__(
        self,
        info: RunInfo,
        program: EntityProgram,
        base: Base,
        *,
        check_activity: Callable[[str, str | None], None] | None = None,
    ) -> None:
        super().__init__(info, cast(Program, program), check_activity=check_activity)
        self.entity = program
        stored = base.version
        self.data = base.data if stored is None or stored == program.version else program.upgrade(base.data, stored)
        self.recorded_version = stored
        self.fields: Fields = _fields.decode(self.data)
        self.state: Any = None
        self.waiting: deque[tuple[ev.OperationCalled, OperationHandler | None, tuple[Any, ...]]] = deque()
        self.current: ev.OperationCalled | None = None
        self.deleting = False
        self._operation: asyncio.Task[Any] | None = None
        self._handler: OperationHandler | None = None
        self._operating: Any = None
        self._seq = base.seq
        self._since_events, self._since_bytes = base.events, base.written
        self._recorded_once, self._began = base.recorded, stored is not None
        self.updated_us = base.updated_us
        self.main = self.loop.create_future()  # type: ignore[assignment]  # nothing runs between operations

    # --- what the kernel asks of any instance -------------------------------------------------------

    takes_signals = False

    def _drain(self) -> None:
        self._turn()
        while not self.closed and self._advance():
            self._turn()

    def _turn(self) -> None:
        """Code that never comes to rest fails its operation, not the entity."""
        try:
            super()._drain()
        except WorkflowMisuse as exc:
            if self.current is None:
                raise
            self._budget = STEPS_PER_DECISION
            if self._operation is not None:
                close_task(self._operation)
                self._operation = None
            self._fail(exc)

    @property
    def restless(self) -> bool:
        return self.current is None and bool(self.waiting) and not self.closed

    def call_path(self) -> tuple[str, ...]:
        return (*(self.current.path if self.current is not None else ()), self.info.workflow_id)

    def footprint(self, history: int) -> int:
        return len(self.data)

    def unanswered(self) -> list[ev.OperationCalled]:
        """Calls that were admitted and not answered, oldest first."""
        return [*([] if self.current is None else [self.current]), *(call for call, _, _ in self.waiting)]

    # --- operations -----------------------------------------------------------------------------------

    def admit(self, call: ev.OperationCalled) -> None:
        """Queues a call. Raises `Rejected` when there is no such operation, or its arguments do not fit."""
        if call.name == DELETE:
            self.waiting.append((call, None, ()))
            return
        try:
            handler = self.entity.operation(call.name)
            arguments = handler.arguments(call.input)
        except Exception as exc:
            if not self.replaying:
                raise Rejected from exc
            handler, arguments = None, (exc,)  # the code has changed since: its turn will tell
        self.waiting.append((call, handler, arguments))

    def _advance(self) -> bool:
        """Ends the operation that is through, or begins the next; False when neither can be."""
        if self.current is not None:
            task = self._operation
            if task is None or not task.done():
                return False
            self._operation = None
            self._end(task)
            return True
        if not self.waiting or (self._state_is_due and not self.replaying):
            return False
        self._begin(*self.waiting.popleft())
        return True

    def _begin(self, call: ev.OperationCalled, handler: OperationHandler | None, arguments: tuple[Any, ...]) -> None:
        self.current, self._handler = call, handler
        # An operation replays alone: whatever it can ask for starts with it.
        self._random = random.Random(f"{self.info.seed}/{call.update_id}")
        self.loop.number_from(blake2b(f"{self.info.seed}/{call.update_id}".encode(), digest_size=5).digest())
        self.loop.epoch_us = self.now_us
        self.updated_us = self.updated_us or self.now_us
        self.patches.clear()
        if call.name == DELETE:
            self.deleting = True
            self._complete(ev.NULL, None)
            return
        if handler is None:  # admitted by other code than this
            self._fail(arguments[0])
            return
        if self.state is None:
            self.state = self.entity.load_state(self.data)
        self._operating = self.entity.bind(self.state)
        context = self.loop.context.copy()
        try:
            result = context.run(handler.call, self._operating, *arguments)
        except (Sealed, BrokenOff):
            raise
        except BaseException as exc:
            self._fail(exc)
            return
        if asyncio.iscoroutine(result):
            self._operation = self.loop.create_task(_ended(result), name=f"operation-{call.name}", context=context)
        else:
            self._finish(result)

    def _end(self, task: asyncio.Task[Any]) -> None:
        result = asyncio.CancelledError() if task.cancelled() else task.result()
        if isinstance(result, BaseException):
            self._fail(result)
        else:
            self._finish(result)

    def _finish(self, result: Any) -> None:
        """The operation returned: what it leaves has to be a state that comes back as it is."""
        self._clear_away()
        assert self._handler is not None
        try:
            raw = self._handler.encode(result)
            left = self.entity.state_of(self._operating)
            data = self.entity.dump_state(left)
            state = self.entity.load_state(data)
            self.entity.check_same(left, state)
        except Exception as exc:
            self._fail(exc)
            return
        self._complete(raw, (data, state))

    def _complete(self, raw: msgspec.Raw, after: tuple[bytes, Any] | None) -> None:
        call = self.current
        assert call is not None
        changed: Fields = {}
        version: int | None = None
        if after is not None and (after[0] != self.data or self.recorded_version != self.entity.version):
            fields = _fields.decode(after[0])
            if self.recorded_version == self.entity.version and fields.keys() >= self.fields.keys():
                changed = {name: value for name, value in fields.items() if self.fields.get(name) != value}
            else:
                changed, version = fields, self.entity.version
            self.data, self.state = after
            self.fields, self.updated_us = fields, self.now_us
            self.recorded_version = self.entity.version
        elif after is not None:
            self.state = after[1]
        self._commands.append(ev.OperationCompleted(call.update_id, raw, self._seq, changed, version, call.caller))
        self._note(200 + len(call.input) + len(raw) + sum(len(value) + len(name) for name, value in changed.items()))
        self._over()
        if self.deleting:
            self._delete()

    def _fail(self, exc: BaseException) -> None:
        call = self.current
        assert call is not None
        self._clear_away()
        failure = failure_of(no_continuing(exc))
        if self._handler is not None:
            failure = self._handler.declared(exc, failure)
        self._commands.append(ev.OperationFailed(call.update_id, failure, self._seq, call.caller))
        self._note(400 + len(call.input))
        self.state = None
        self.deleting = False
        self._over()

    def _over(self) -> None:
        self.current = self._operating = self._handler = None

    def _note(self, size: int) -> None:
        self._since_events += 2
        self._since_bytes += size

    def _clear_away(self) -> None:
        """What an operation began and did not wait for ends with it; only activities under way are left to end."""
        self.fault = None  # what it misused fails it, and is its caller's to hear of: the entity goes on
        for timer in list(self.timers.values()):
            timer.cancel()
        self.conditions.clear()
        self.receivers.clear()
        for _ in range(3):
            left = [task for task in self.loop.tasks if not task.done()]
            if not left:
                return
            for task in left:
                task.cancel()
            self._budget = self.loop.run_ready(self._budget)
        for task in left:
            if not task.done():
                close_task(task)
        self.loop.ready.clear()
        self.loop.tasks = [task for task in self.loop.tasks if task.done()]

    def request_delete(self) -> None:
        """The entity ends with the operation that is running, if that succeeds."""
        self.check_writable("delete the entity")
        self.deleting = True

    def _delete(self) -> None:
        for call, _, _ in self.waiting:
            self._commands.append(ev.OperationFailed(call.update_id, gone(), self._seq, call.caller))
        self.waiting.clear()
        self.close_with(ev.RunCompleted())

    # --- recording the state ----------------------------------------------------------------------------

    @property
    def _state_is_due(self) -> bool:
        if not self._recorded_once:
            return self._since_events > 0 and not self.waiting
        # What waits is recorded, too: the more it is, the rarer.
        size = len(self.data) + sum(len(call.input) for call, _, _ in islice(self.waiting, 1_000))
        return self._since_events >= max(RECORD_EVENTS, 2 * len(self.waiting)) or self._since_bytes >= max(
            RECORD_BYTES, 2 * size
        )

    def _end_of_turn(self) -> None:
        if self.replaying or self.closed:
            return
        if self.current is not None:
            if not self._began:  # whoever replays it begins with this state, whatever a new one is made of by then
                self._began, self.recorded_version = True, self.entity.version
                self._commands.insert(0, ev.EntityCreated(msgspec.Raw(self.data), self.entity.version))
            return
        if not self._began and not self._since_events:
            self.close_with(ev.RunCompleted())  # all that was asked of it was refused: it does not come about
            return
        if self._recorded_once and not self._state_is_due:
            return
        waiting = tuple(call for call, _, _ in self.waiting)
        self._commands.append(ev.StateRecorded(msgspec.Raw(self.data), self.entity.version, self._seq, waiting))
        self.recorded_version = self.entity.version
        self._recorded_once = self._began = True
        self._since_events = self._since_bytes = 0

    # --- reading ------------------------------------------------------------------------------------------

    def query(self, name: str, input: msgspec.Raw) -> msgspec.Raw:
        """Over the state that the last completed operation left; what a query changes is an error, and undone."""
        if name == STATE:
            return msgspec.Raw(self.data)
        if name == SNAPSHOT:
            return msgspec.Raw(msgspec.msgpack.encode(Recorded(self.data, self.events, self.updated_us)))
        handler = self.entity.query(name)
        if self.current is not None:
            state = self.entity.load_state(self.data)
        else:
            state = self.state = self.entity.load_state(self.data) if self.state is None else self.state
        target = self.entity.bind(state)
        before = self.entity.dump_state(state)
        answer = self._reading(lambda: handler.encode(handler.invoke(target, input)))
        try:
            unchanged = self.entity.dump_state(self.entity.state_of(target)) == before
        except Exception:
            unchanged = False
        if not unchanged:
            if self.current is None:
                self.state = None
            raise WorkflowMisuse(f"query {name!r} of entity {self.info.type!r} changed the state", hint="make it an operation")
        return answer


async def _ended(operation: Any) -> Any:
    """What an operation returned or raised. Nothing it raises may reach the loop: it is its caller's to hear of."""
    try:
        return await operation
    except (Sealed, BrokenOff):
        raise
    except BaseException as exc:
        return exc


class Folded(msgspec.Struct, gc=False):
    """A history read up to its last completed operation, which is `command` of decision number `at` (from 0)."""

    base: Base
    at: int = -1
    command: int = 0
    rested: bool = False
    """The state was recorded there: what waited began with the next decision."""


History = Sequence[tuple[list[ev.Arrival], list[ev.Command]]]


def fold(program: EntityProgram, decisions: History, times: Sequence[int]) -> Folded:
    """Adds up what the completed operations changed. `base.waiting` are the calls that arrived no later than `at`."""
    fields: Fields = {}
    version, seq, events, written, changed = None, 0, 0, 0, times[0] if times else 0
    waiting: deque[ev.OperationCalled] = deque()
    found, recorded = Folded(Base(b"")), False
    first = max((n for n, (_, commands) in enumerate(decisions) if _records(commands)), default=0)
    for number, (arrivals, commands) in enumerate(decisions[first:], first):
        waiting += [arrival for arrival in arrivals if isinstance(arrival, ev.OperationCalled)]
        for index, command in enumerate(commands):
            if number == first and _records(commands) and not isinstance(command, ev.StateRecorded):
                continue  # it is in the state that was recorded at the end of this decision
            if isinstance(command, ev.StateRecorded):
                fields, version, events, written = _fields.decode(command.state), command.version, 0, 0
                waiting, changed, recorded = deque(command.waiting), times[number], True
            elif isinstance(command, ev.EntityCreated):
                fields, version = _fields.decode(command.state), command.version
                continue
            elif isinstance(command, (ev.OperationCompleted, ev.OperationFailed)):
                waiting.popleft()  # they end in the order in which they came
                events += 2
                written += 200
                if isinstance(command, ev.OperationCompleted):
                    fields = dict(command.state) if command.version is not None else {**fields, **command.state}
                    version = version if command.version is None else command.version
                    written += sum(map(len, command.state.values()))
                    changed = times[number] if command.state else changed
            else:
                continue
            seq = command.seq
            found.at, found.command, found.rested = number, index + 1, isinstance(command, ev.StateRecorded)
            found.base.waiting = tuple(waiting)
    data = program.initial() if version is None else msgspec.json.encode(fields)
    found.base = Base(data, version, seq, found.base.waiting, events, written, changed, recorded)
    return found


def recorded_in(program: EntityProgram, stored: Sequence[StoredDecision]) -> Recorded:
    """The state that a history tells, in this version of the schema, without running any operation."""
    decisions = [ev.decode_events(row.events) for row in stored]
    base = fold(program, decisions, [row.at_us for row in stored]).base
    data = base.data if base.version is None or base.version == program.version else program.upgrade(base.data, base.version)
    return Recorded(data, _last_event(stored, decisions), base.updated_us)


def _last_event(stored: Sequence[StoredDecision], decisions: History) -> int:
    return stored[-1].first_event_id - 1 + len(decisions[-1][0]) + len(decisions[-1][1]) if stored else 0


def _records(commands: list[ev.Command]) -> bool:
    return bool(commands) and isinstance(commands[-1], ev.StateRecorded)


def rebuild(
    info: RunInfo,
    program: EntityProgram,
    stored: Sequence[StoredDecision],
    check_activity: Callable[[str, str | None], None] | None = None,
) -> EntityInstance:
    """The entity as its history left it. Raises what a replay of the operation under way raises."""
    decisions = [ev.decode_events(row.events) for row in stored]
    found = fold(program, decisions, [row.at_us for row in stored])
    instance = EntityInstance(info, program, found.base, check_activity=check_activity)
    instance.replaying = True
    for call in found.base.waiting:
        instance.admit(call)
    if instance.waiting and not found.rested:
        arrivals, commands = decisions[found.at]
        instance.events = stored[found.at].first_event_id - 1 + len(arrivals) + found.command
        instance.activate(stored[found.at].at_us, [], commands[found.command :])
    for number in range(found.at + 1, len(stored)):
        instance.events = stored[number].first_event_id - 1
        arrivals, commands = decisions[number]
        asked: list[ev.Command] = [command for command in commands if not isinstance(command, ev.EntityCreated)]
        instance.activate(stored[number].at_us, arrivals, asked)
    instance.replaying = False
    instance.events = _last_event(stored, decisions)
    return instance
