"""Bodies of answers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from harvest.server.models.scalars import Json


class Started(BaseModel):
    workflow_id: str
    execution_id: UUID


class Signalled(BaseModel):
    """`routed_execution_id` is there only where another attempt took it than the one that was addressed."""

    workflow_id: str
    routed_execution_id: UUID | None = None


class Answer(BaseModel):
    result: Json


class Updated(BaseModel):
    """`state` is completed, or admitted where only the id is known yet: its result can be asked for."""

    update_id: str
    state: Literal["admitted", "completed"]
    result: Json = None


class Acted(BaseModel):
    """`execution_id` is the one that was acted on. `done` is false where the request is stored and no worker has carried it out
    yet."""

    workflow_id: str
    execution_id: UUID | None = None
    done: bool = True


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
    stored: int
    before: datetime | None
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


class Called(BaseModel):
    """`state` is completed, or stored where no worker has answered yet: with the same key it can be asked for again."""

    state: Literal["completed", "stored"]
    result: Json = None


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
    failovers: float
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
