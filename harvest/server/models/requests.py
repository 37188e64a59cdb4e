"""Bodies of requests. What is not known is refused, not ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from harvest.server.models.scalars import Json, Key, Moment, Name, Note, Number, Queue, Seconds, Text, Timeout, WorkflowId


class Body(BaseModel):
    """A request: what is not known is refused, not ignored."""

    model_config = ConfigDict(extra="forbid")


class Retry(Body):
    """`harvest.RetryPolicy`. Waits in seconds; `max_attempts` 0 means without end."""

    max_attempts: Annotated[int, Field(ge=0, lt=2**31), Number] = 0
    initial: Seconds = 1.0
    factor: Annotated[float, Field(ge=1, le=1e6, allow_inf_nan=False), Number] = 2.0
    cap: Seconds = 60.0
    jitter: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False), Number] = 0.1
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
    priority: Annotated[int, Field(ge=-1000, le=1000), Number] = 0
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
    update_id: Annotated[str, Field(min_length=1, max_length=900, pattern=r"^[^\x00/]+$")] | None = None
    update_timeout: Timeout = 30.0


class Signal(Body):
    args: Args = []
    idempotency_key: Key | None = None


class Query(Body):
    args: Args = []
    timeout: Timeout = 10.0


UpdateId = Annotated[str, Field(min_length=1, max_length=900, pattern=r"^[^\x00/]+$", description="part of a path later")]


class Update(Body):
    args: Args = []
    update_id: UpdateId | None = None
    wait: Literal["admitted", "completed"] = "completed"
    timeout: Timeout = 30.0


class Reason(Body):
    reason: Text = ""


class Terminate(Reason):
    timeout: Timeout = 10.0


class Pause(Body):
    timeout: Timeout = 10.0


class Reset(Body):
    """`decision` is the one from whose end the run is forked; the last that did not close it by default."""

    decision: Annotated[int, Field(ge=0, lt=2**31), Number] | None = None
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
    limit: Annotated[int, Field(ge=0, lt=2**31), Number] | None = None
    timeout: Timeout = 30.0


class Call(Body):
    args: Args = []
    idempotency_key: Key | None = None
    timeout: Timeout = 30.0


class Token(Body):
    """What a read waits for: this entity as far as this event."""

    type: Name
    key: Key
    execution_id: UUID
    event_id: Annotated[int, Field(ge=0, lt=2**31), Number]


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
