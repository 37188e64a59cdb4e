"""The closed vocabulary of history: what arrives at a run (arrivals) and what its code asks for (commands).

Both are frozen structs, stored as JSON objects tagged by `type`. Payload fields stay raw JSON until the
code asks for the value. `seq` numbers what the code can wait for, from 1, per run.
"""

from __future__ import annotations

from typing import Union

import msgspec

from harvest.failure import Failure

NULL = msgspec.Raw(b"null")


class Event(msgspec.Struct, frozen=True, tag_field="type", omit_defaults=True, gc=False):
    """Base of all events."""


# --- arrivals: from outside, ingested by a decision -----------------------------------------------


class TimerFired(Event, frozen=True, tag=True, omit_defaults=True, gc=False):
    seq: int


class ActivityCompleted(Event, frozen=True, tag=True, omit_defaults=True, gc=False):
    seq: int
    result: msgspec.Raw = NULL


class ActivityFailed(Event, frozen=True, tag=True, omit_defaults=True, gc=False):
    """For good: retries are over. `attempt` counts the tries."""

    seq: int
    failure: Failure
    attempt: int = 1


class ChildCompleted(Event, frozen=True, tag=True, omit_defaults=True, gc=False):
    seq: int
    result: msgspec.Raw = NULL


class ChildFailed(Event, frozen=True, tag=True, omit_defaults=True, gc=False):
    """Failed, cancelled, terminated, timed out, or never started; `failure.type` tells."""

    seq: int
    failure: Failure


class ExternalDone(Event, frozen=True, tag=True, omit_defaults=True, gc=False):
    """A signal or cancel request to another run was stored, or (`failure`) found no open run."""

    seq: int
    failure: Failure | None = None


class SignalReceived(Event, frozen=True, tag=True, omit_defaults=True, gc=False):
    """`input` is the JSON array of arguments."""

    name: str
    input: msgspec.Raw
    key: str | None = None


class UpdateAdmitted(Event, frozen=True, tag=True, omit_defaults=True, gc=False):
    update_id: str
    name: str
    input: msgspec.Raw


class Caller(msgspec.Struct, frozen=True, gc=False):
    """The run whose code waits for an operation, and the number under which it waits."""

    execution_id: str
    workflow_id: str
    pool: str
    seq: int


class OperationCalled(UpdateAdmitted, frozen=True, tag=True, omit_defaults=True, gc=False):
    """An operation of an entity is asked for: admitted, answered and de-duplicated like an update.

    `path` holds the workflow ids that wait for it, outermost first.
    """

    caller: Caller | None = None
    path: tuple[str, ...] = ()


class CallAnswered(Event, frozen=True, tag=True, omit_defaults=True, gc=False):
    """The operation that a run called has a result."""

    seq: int
    result: msgspec.Raw = NULL


class CallFailed(Event, frozen=True, tag=True, omit_defaults=True, gc=False):
    """The operation that a run called failed, or was refused."""

    seq: int
    failure: Failure


class CancelRequested(Event, frozen=True, tag=True, omit_defaults=True, gc=False):
    reason: str = ""


class TerminateRequested(Event, frozen=True, tag=True, omit_defaults=True, gc=False):
    reason: str = ""


class DeadlinePassed(Event, frozen=True, tag=True, omit_defaults=True, gc=False):
    """The run's own time-out (`timeout=` of start)."""


class ResetRequested(Event, frozen=True, tag=True, omit_defaults=True, gc=False):
    """The run ends, and begins again as `execution_id` after its decision `decision`. `signals`: reapply or drop."""

    execution_id: str
    decision: int
    signals: str = "reapply"
    reason: str = ""


class PauseRequested(Event, frozen=True, tag=True, omit_defaults=True, gc=False):
    """Mail only: a pause changes the run's state, and leaves nothing in its history."""

    key: str


class HistoryCapReached(Event, frozen=True, tag=True, omit_defaults=True, gc=False):
    """The hard cap of history (R-11): the engine closes the run."""

    events: int


Arrival = Union[
    TimerFired,
    ActivityCompleted,
    ActivityFailed,
    ChildCompleted,
    ChildFailed,
    ExternalDone,
    SignalReceived,
    UpdateAdmitted,
    OperationCalled,
    CallAnswered,
    CallFailed,
    CancelRequested,
    TerminateRequested,
    DeadlinePassed,
    HistoryCapReached,
    ResetRequested,
    PauseRequested,
]


# --- commands: what the code asked for ------------------------------------------------------------


class RetrySpec(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A retry policy as stored. Seconds; `max_attempts` 0 means without end."""

    max_attempts: int = 0
    initial: float = 1.0
    factor: float = 2.0
    cap: float = 60.0
    jitter: float = 0.1
    non_retryable: tuple[str, ...] = ()


class ActivityOptions(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Where and how an activity runs. `mode`: local, eager or queue. Time-outs in seconds, None for no bound."""

    mode: str = "eager"
    queue: str | None = None
    priority: int = 0
    start_to_close: float | None = None
    schedule_to_start: float | None = None
    schedule_to_close: float | None = None
    heartbeat: float | None = None
    retry: RetrySpec = RetrySpec()


DEFAULT_OPTIONS = ActivityOptions()
LOCAL_OPTIONS = ActivityOptions(mode="local")


class ActivityScheduled(Event, frozen=True, tag=True, omit_defaults=True, gc=False):
    seq: int
    name: str
    input: msgspec.Raw
    options: ActivityOptions = DEFAULT_OPTIONS


class ActivityCancelRequested(Event, frozen=True, tag=True, omit_defaults=True, gc=False):
    seq: int


class TimerStarted(Event, frozen=True, tag=True, omit_defaults=True, gc=False):
    """Fires `delay_us` microseconds after the time of the decision that started it."""

    seq: int
    delay_us: int


class TimerCancelled(Event, frozen=True, tag=True, omit_defaults=True, gc=False):
    seq: int


class ChildStarted(Event, frozen=True, tag=True, omit_defaults=True, gc=False):
    """`parent_close`: terminate, cancel or abandon. `timeout` in seconds."""

    seq: int
    workflow_id: str
    name: str
    input: msgspec.Raw
    queue: str | None = None
    parent_close: str = "terminate"
    timeout: float | None = None
    priority: int = 0
    retry: RetrySpec | None = None


class ChildCancelRequested(Event, frozen=True, tag=True, omit_defaults=True, gc=False):
    seq: int
    workflow_id: str


class ExternalSignalSent(Event, frozen=True, tag=True, omit_defaults=True, gc=False):
    seq: int
    workflow_id: str
    name: str
    input: msgspec.Raw


class ExternalCancelSent(Event, frozen=True, tag=True, omit_defaults=True, gc=False):
    seq: int
    workflow_id: str
    reason: str = ""


class SideEffectRecorded(Event, frozen=True, tag=True, omit_defaults=True, gc=False):
    seq: int
    value: msgspec.Raw


class VersionMarked(Event, frozen=True, tag=True, omit_defaults=True, gc=False):
    patch_id: str
    deprecated: bool = False


class UpdateCompleted(Event, frozen=True, tag=True, omit_defaults=True, gc=False):
    update_id: str
    result: msgspec.Raw = NULL


class UpdateFailed(Event, frozen=True, tag=True, omit_defaults=True, gc=False):
    update_id: str
    failure: Failure


class EntityCallSent(Event, frozen=True, tag=True, omit_defaults=True, gc=False):
    """Calls operation `name` of the entity behind `workflow_id`, which is created if there is none."""

    seq: int
    workflow_id: str
    entity: str
    name: str
    input: msgspec.Raw
    queue: str | None = None
    path: tuple[str, ...] = ()


class OperationCompleted(UpdateCompleted, frozen=True, tag=True, omit_defaults=True, gc=False):
    """`state` holds the fields that changed, or where `version` is given all of them, in that version of the schema.

    `seq` is the last number that was given out, so that a replay can begin after this event.
    """

    seq: int = 0
    state: dict[str, msgspec.Raw] = {}
    version: int | None = None
    caller: Caller | None = None


class OperationFailed(UpdateFailed, frozen=True, tag=True, omit_defaults=True, gc=False):
    """The state is what it was before."""

    seq: int = 0
    caller: Caller | None = None


class EntityCreated(Event, frozen=True, tag=True, omit_defaults=True, gc=False):
    """The state with which an entity began whose first operation takes longer than one decision."""

    state: msgspec.Raw
    version: int


class StateRecorded(Event, frozen=True, tag=True, omit_defaults=True, gc=False):
    """The whole state of an entity between two operations: a replay begins here. `waiting` are calls not begun yet."""

    state: msgspec.Raw
    version: int
    seq: int = 0
    waiting: tuple[OperationCalled, ...] = ()


class AttributesUpserted(Event, frozen=True, tag=True, omit_defaults=True, gc=False):
    """`attributes` is a JSON object; null removes a key."""

    attributes: msgspec.Raw


class RunCompleted(Event, frozen=True, tag=True, omit_defaults=True, gc=False):
    result: msgspec.Raw = NULL


class RunFailed(Event, frozen=True, tag=True, omit_defaults=True, gc=False):
    failure: Failure


class RunCancelled(Event, frozen=True, tag=True, omit_defaults=True, gc=False):
    reason: str = ""


class RunTerminated(Event, frozen=True, tag=True, omit_defaults=True, gc=False):
    reason: str = ""


class RunTimedOut(Event, frozen=True, tag=True, omit_defaults=True, gc=False):
    pass


class RunContinued(Event, frozen=True, tag=True, omit_defaults=True, gc=False):
    """Continue as new: the same workflow id starts again with `input`; `name` may be another type."""

    name: str
    input: msgspec.Raw


class WorkflowRetryScheduled(Event, frozen=True, tag=True, omit_defaults=True, gc=False):
    """After `RunFailed`: the engine tries again as `execution_id`, `delay_us` microseconds later. No code asks for it."""

    execution_id: str
    attempt: int
    delay_us: int = 0


Command = Union[
    ActivityScheduled,
    ActivityCancelRequested,
    TimerStarted,
    TimerCancelled,
    ChildStarted,
    ChildCancelRequested,
    ExternalSignalSent,
    ExternalCancelSent,
    SideEffectRecorded,
    VersionMarked,
    UpdateCompleted,
    UpdateFailed,
    EntityCallSent,
    OperationCompleted,
    OperationFailed,
    EntityCreated,
    StateRecorded,
    AttributesUpserted,
    RunCompleted,
    RunFailed,
    RunCancelled,
    RunTerminated,
    RunTimedOut,
    RunContinued,
]

Closing = (RunCompleted, RunFailed, RunCancelled, RunTerminated, RunTimedOut, RunContinued)
ARRIVALS: tuple[type, ...] = Arrival.__args__  # type: ignore[attr-defined]
EventUnion = Union[Arrival, Command, WorkflowRetryScheduled]

_encoder = msgspec.json.Encoder()
_list_decoder = msgspec.json.Decoder(list[EventUnion])
_event_decoder = msgspec.json.Decoder(EventUnion)
_arrival_decoder = msgspec.json.Decoder(Arrival)


def encode_events(events: list[Event]) -> str:
    return _encoder.encode(events).decode()


def encode_event(event: Event) -> str:
    return _encoder.encode(event).decode()


def decode_event(raw: str) -> Event:
    event: Event = _event_decoder.decode(raw)
    return event


def decode_arrival(raw: str) -> Arrival:
    return _arrival_decoder.decode(raw)


def decode_events(raw: str | bytes) -> tuple[list[Arrival], list[Command]]:
    """Splits a stored decision into its arrivals and its commands."""
    arrivals: list[Arrival] = []
    commands: list[Command] = []
    for event in _list_decoder.decode(raw):
        if isinstance(event, ARRIVALS):
            arrivals.append(event)  # type: ignore[arg-type]
        elif not isinstance(event, WorkflowRetryScheduled):
            commands.append(event)  # type: ignore[arg-type]
    return arrivals, commands


def describe_command(command: Event) -> str:
    """What a person needs to recognise a command: its kind and key inputs (R-3)."""
    kind = type(command).__name__
    facts = [
        f"{field}={getattr(command, field)!r}"
        for field in ("seq", "name", "workflow_id", "delay_us", "patch_id", "update_id")
        if hasattr(command, field)
    ]
    if isinstance(command, ActivityScheduled):
        facts.append(f"mode={command.options.mode!r}")
    return f"{kind}({', '.join(facts)})"


def same_command(recorded: Command, issued: Command) -> bool:
    """Kind, number, name and key inputs agree; payloads are data and may differ after a code change."""
    if type(recorded) is not type(issued):
        return False
    if recorded == issued:
        return True
    return describe_command(recorded) == describe_command(issued)
