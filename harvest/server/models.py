"""Bodies of requests and answers, as OpenAPI shows them. Payloads are any JSON."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field

from harvest.ids import WORKFLOW_ID_CAP

Json = Any


def _number(value: Any) -> Any:
    """JSON numbers only: a truth value or a text is none."""
    if isinstance(value, (bool, str)):
        raise ValueError("must be a number")
    return value


def _moment(value: Any) -> Any:
    """ISO 8601 only: a bare number would be taken for seconds since 1970."""
    if isinstance(value, str) and "-" not in value[1:]:
        raise ValueError("must be a time as in ISO 8601, with its offset")
    return value


Number = BeforeValidator(_number)
Moment = Annotated[AwareDatetime, BeforeValidator(_moment)]
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00]+$")]
WorkflowId = Annotated[str, Field(min_length=1, max_length=WORKFLOW_ID_CAP, pattern=r"^[^@\x00][^\x00]*$")]
Queue = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^@\x00]+$")]
Text = Annotated[str, Field(max_length=10_000, pattern=r"^[^\x00]*$")]
Note = Annotated[str, Field(min_length=1, max_length=10_000, pattern=r"^[^\x00]+$")]
Key = Annotated[str, Field(min_length=1, max_length=900, pattern=r"^[^\x00]+$")]
Seconds = Annotated[float, Number, Field(gt=0, lt=1e9, description="seconds", allow_inf_nan=False)]
WAIT = Field(ge=0.001, le=60, description="seconds to wait for an answer", allow_inf_nan=False)
Timeout = Annotated[float, Number, WAIT]
AskedFor = Annotated[float, WAIT]
"""The same as a query parameter, which is a text."""
State = Literal["RUNNING", "PAUSED", "COMPLETED", "FAILED", "CANCELLED", "TERMINATED", "TIMED_OUT", "CONTINUED_AS_NEW"]


class Body(BaseModel):
    """A request: what is not known is refused, not ignored."""

    model_config = ConfigDict(extra="forbid")


class Retry(Body):
    """`harvest.RetryPolicy`. Waits in seconds; `max_attempts` 0 means without end."""

    max_attempts: Annotated[int, Number, Field(ge=0, lt=2**31)] = 0
    initial: Seconds = 1.0
    factor: Annotated[float, Number, Field(ge=1, le=1e6, allow_inf_nan=False)] = 2.0
    cap: Seconds = 60.0
    jitter: Annotated[float, Number, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.1
    non_retryable: list[Name] = Field([], max_length=100)


Args = Annotated[list[Json], Field(description="Arguments, in their order", max_length=100)]


class Start(Body):
    """A run to start. `timeout` ends an attempt as TIMED_OUT, `chain_timeout` all attempts together, `delay` puts off the first
    decision."""

    type: Name
    id: WorkflowId
    args: Args = []
    queue: Queue = "default"
    build_id: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^@\s\x00]+$")] | None = None
    conflict: Literal["fail", "use_existing", "terminate_existing"] | None = None
    reuse: Literal["allow_duplicate", "allow_failed", "reject_duplicate"] = "allow_duplicate"
    priority: Annotated[int, Number, Field(ge=-1000, le=1000)] = 0
    timeout: Seconds | None = None
    chain_timeout: Seconds | None = None
    delay: Seconds | None = None
    retry: Retry | None = None
    memo: Json = None
    search_attributes: dict[str, Json] | None = None


class SignalWithStart(Start):
    signal: Name
    signal_args: Args = []


class UpdateWithStart(Start):
    update: Name
    update_args: Args = []
    update_id: Key | None = None
    update_timeout: Timeout = 30.0


class Started(BaseModel):
    workflow_id: str
    execution_id: UUID


class Signal(Body):
    args: Args = []
    idempotency_key: Key | None = None


class Signalled(BaseModel):
    """`routed_execution_id` is there only where another attempt took it than the one that was addressed."""

    workflow_id: str
    routed_execution_id: UUID | None = None


class Query(Body):
    args: Args = []
    timeout: Timeout = 10.0


class Answer(BaseModel):
    result: Json


class Update(Body):
    args: Args = []
    update_id: Key | None = None
    wait: Literal["admitted", "completed"] = "completed"
    timeout: Timeout = 30.0


class Updated(BaseModel):
    """`state` is completed, or admitted where only the id is known yet: its result can be asked for."""

    update_id: str
    state: Literal["admitted", "completed"]
    result: Json = None


class Reason(Body):
    reason: Text = ""


class Terminate(Reason):
    timeout: Timeout = 10.0


class Pause(Body):
    timeout: Timeout = 10.0


class Acted(BaseModel):
    """`execution_id` is the one that was acted on. `done` is false where the request is stored and no worker has carried it out
    yet."""

    workflow_id: str
    execution_id: UUID | None = None
    done: bool = True


class Reset(Body):
    """`decision` is the one from whose end the run is forked; the last that did not close it by default."""

    decision: Annotated[int, Number, Field(ge=0, lt=2**31)] | None = None
    signals: Literal["reapply", "drop"] = "reapply"
    reason: Text = ""
    timeout: Timeout = 10.0


class Rerun(Body):
    id: WorkflowId | None = None


class FailActivity(Reason):
    pass


class Hold(Body):
    reason: Note


class TriageNote(Body):
    note: Note
    status: Literal["open", "investigating", "resolved"] = "investigating"


class Erased(BaseModel):
    decisions: int


class Run(BaseModel):
    workflow_id: str
    execution_id: UUID
    type: str
    queue: str
    state: str
    attempt: int
    created_at: datetime
    closed_at: datetime | None
    parent_workflow_id: str | None
    search_attributes: dict[str, Json]


class RunPage(BaseModel):
    """`next` is the cursor of the page behind this one, absent at the end."""

    runs: list[Run]
    next: str | None = None


class Failure(BaseModel):
    model_config = ConfigDict(extra="allow")

    message: str
    type: str = "Exception"


class Activity(BaseModel):
    seq: int
    name: str
    queue: str
    state: str
    attempt: int
    failure: Json = None


class Description(Run):
    build_id: str | None
    partition: int
    deadline: datetime | None
    due_at: datetime | None
    priority: int
    input: Json
    result: Json
    failure: Failure | None
    error: Failure | None
    strikes: int
    memo: Json
    continued_from: UUID | None
    continued_to: UUID | None
    retry_of_exec_id: UUID | None
    retried_as: UUID | None
    reset_of_exec_id: UUID | None
    reset_decision: int | None
    rerun_of_exec_id: UUID | None
    retry: dict[str, Json] | None
    chain_deadline: datetime | None
    timeout: float | None
    chain_timeout: float | None
    paused_at: datetime | None
    legal_hold: dict[str, Json] | None
    erased_at: datetime | None
    decisions: int
    events: int
    unread_messages: int
    activities: list[Activity]


class Snapshot(BaseModel):
    state: str
    result: Json = None
    failure: Failure | None = None


class Event(BaseModel):
    event_id: int
    decision: int
    at: datetime
    type: str
    event: dict[str, Json]


class EventPage(BaseModel):
    """`next` is the `after` of the page behind this one, absent at the end."""

    events: list[Event]
    next: int | None = None


class Stretch(BaseModel):
    kind: str
    name: str
    started_at: datetime
    ended_at: datetime | None = None
    seq: int | None = None
    outcome: str | None = None


class Frame(BaseModel):
    file: str
    line: int
    function: str
    code: str


class TaskStack(BaseModel):
    task: str
    frames: list[Frame]


class Awaitable(BaseModel):
    kind: str
    name: str
    seq: int | None = None
    due_us: int | None = Field(None, description="microseconds since 1970")
    where: str | None = None


class Diagnosis(BaseModel):
    workflow_id: str
    execution_id: UUID
    code: str
    sentence: str
    command: str | None = None


class Link(BaseModel):
    execution_id: UUID
    workflow_id: str
    type: str
    link: str
    came_from: UUID | None
    attempt: int
    state: str
    created_at: datetime
    closed_at: datetime | None
    failure: Failure | None
    reset_decision: int | None
    erased_at: datetime | None


class Decision(BaseModel):
    decision: int
    at: datetime
    scheduled: str
    replay_mode: str
    events: int
    worker_id: UUID
    host: str | None
    pid: int | None
    build_id: str | None


class StickyReport(BaseModel):
    workflow_id: str
    execution_id: UUID
    state: str
    workers: int
    windows_timed_out: list[int]
    decisions: list[Decision]
    task: dict[str, Json] | None


class Triaged(BaseModel):
    at: datetime
    author: str
    status: str
    note: str


class Filters(Body):
    """Which open runs a bulk act is about; at least one, or `everything`."""

    state: Literal["RUNNING", "PAUSED"] | None = None
    type: Name | None = None
    queue: Name | None = None
    prefix: Name | None = None
    search_attributes: dict[str, Json] | None = None
    after: Moment | None = None
    before: Moment | None = None


class Bulk(Body):
    """A dry run unless told otherwise: it counts and shows what would be done."""

    verb: Literal["cancel", "terminate", "signal", "pause", "resume"]
    filters: Filters = Filters()
    everything: bool = False
    dry_run: bool = True
    signal: Name | None = None
    args: Args = []
    reason: Text = ""
    limit: Annotated[int, Number, Field(ge=0, lt=2**31)] | None = None


class Target(BaseModel):
    workflow_id: str
    execution_id: UUID
    type: str
    state: str


class FailedAct(BaseModel):
    workflow_id: str
    execution_id: UUID
    error: str


class BulkReport(BaseModel):
    verb: str
    dry_run: bool
    matched: int
    done: int
    sample: list[Target]
    failed: list[FailedAct]


class Letter(BaseModel):
    execution_id: UUID
    workflow_id: str
    type: str
    queue: str
    state: str
    at: datetime
    strikes: int
    error: Failure


class LetterPage(BaseModel):
    letters: list[Letter]
    next: str | None = None


class Cause(BaseModel):
    type: str
    error: str
    message: str
    count: int
    oldest: datetime
    newest: datetime
    example: UUID


class Entity(BaseModel):
    """As it was when its state was recorded last; `bytes` of JSON."""

    type: str
    key: str
    execution_id: UUID
    queue: str
    partition: int
    event_id: int
    version: int
    bytes: int
    created_at: datetime
    updated_at: datetime


class EntityPage(BaseModel):
    entities: list[Entity]
    next: str | None = None


class EntityState(Entity):
    state: Json


class Call(Body):
    args: Args = []
    idempotency_key: Key | None = None
    timeout: Timeout = 30.0


class Called(BaseModel):
    """`state` is completed, or stored where no worker has answered yet: with the same key it can be asked for again."""

    state: Literal["completed", "stored"]
    result: Json = None


class Token(Body):
    """What a read waits for: this entity as far as this event."""

    type: Name
    key: Key
    execution_id: UUID
    event_id: Annotated[int, Number, Field(ge=0, lt=2**31)]


def _scalar(value: Any) -> Any:
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise ValueError("a parameter is a text, a number, a truth value or null")


Parameter = Annotated[str | int | float | bool | None, BeforeValidator(_scalar)]


class Sql(Body):
    """One SELECT over the table `entity (type, key, state, event_id, updated_at)`."""

    sql: str = Field(min_length=1, max_length=20_000, examples=["SELECT key, state FROM entity"])
    params: list[Parameter] | dict[str, Parameter] = []
    timeout: Timeout = 10.0


class FleetSql(Sql):
    after: list[Token] = Field([], max_length=1000)


class Rows(BaseModel):
    columns: list[str]
    rows: list[list[Json]]
    milliseconds: float


class EntityRows(Rows):
    """`source` says where the state was read: resident, disk or history."""

    source: str
    event_id: int
    updated_at: datetime


class FleetRows(Rows):
    complete: bool
    freshness: list[dict[str, Json]]
    unanswered: list[dict[str, Json]]


class Worker(BaseModel):
    worker_id: UUID
    host: str
    pid: int
    queue: str
    build_id: str
    state: str
    started_at: datetime
    heartbeat_at: datetime
    scanned_at: datetime | None
    workflows: list[str]
    activities: list[str]
    pools: list[str]
    can_own: bool
    grants: list[str]
    refusals: dict[str, Json]
    partitions: dict[str, int]
    cache_capacity: int
    config: dict[str, Json]
    figures: dict[str, Json]


class Pool(BaseModel):
    """One entry per partition, in order."""

    pool: str
    owners: list[UUID | None]
    epochs: list[int]


class Ownership(BaseModel):
    mode: str
    since: datetime
    pools: list[Pool]
    workers: list[Worker]


class Failover(BaseModel):
    worker_id: UUID
    host: str
    pid: int
    queue: str
    build_id: str
    at: datetime
    noticed_after: float
    recovered_after: float | None


class Switched(BaseModel):
    mode: str
    changed: bool


class Finding(BaseModel):
    model_config = ConfigDict(extra="allow")


Quantiles = Annotated[tuple[float | None, float | None], Field(description="p50 and p95, in seconds")]


class HealthPoint(BaseModel):
    """An interval of 30 s that ends at `at` (seconds since 1970). Rates per second."""

    at: float
    workers: int
    decisions: float
    commits: float
    batch: float | None
    modes: dict[str, float]
    closed: dict[str, float]
    commit: Quantiles
    wait: Quantiles
    schedule_to_start: Quantiles
    failovers: int
    hub: dict[str, float] | None


class AuditEntry(BaseModel):
    audit_id: UUID
    at: datetime
    actor: str
    token_id: UUID | None
    address: str | None
    method: str
    route: str
    target: dict[str, Json]
    status: int | None
    ended_at: datetime | None


class AuditPage(BaseModel):
    entries: list[AuditEntry]
    next: str | None = None


class Me(BaseModel):
    """Who this request was made by, and what that one may do."""

    name: str
    scopes: list[str]
    via: str
