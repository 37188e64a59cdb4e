"""A handle on a logical run: what can be asked of it and done to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Concatenate, Generic, TypeVar, overload
from uuid import UUID

import msgspec

from harvest.client.calls import handler_call
from harvest.client.operated import Operated
from harvest.core.events import RetrySpec
from harvest.core.replay import History, encode_history
from harvest.decisions.answers import Answer
from harvest.decisions.load import info_of, retry_of
from harvest.definitions.options import Span, seconds
from harvest.definitions.workflow import WorkflowDefinition
from harvest.errors import (
    ConfigError,
    HarvestError,
    PayloadErased,
    UpdateFailed,
    UpdateRejected,
    WorkflowFailedError,
    WorkflowNotFound,
)
from harvest.failure import Failure, decode_failure, error_of
from harvest.hub import executions, history
from harvest.hub.database import Row
from harvest.ids import WORKFLOW_ID_CAP, check_name, new_id
from harvest.operations import again, follow, message, pause, query, update
from harvest.operations.follow import Outcome
from harvest.operations.live import exactly, find, live_attempt
from harvest.operations.site import Site
from harvest.telemetry.traces import calling
from harvest.workflow import UpdateMethod

T = TypeVar("T")
R = TypeVar("R")
KEY_CAP = 1_000


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One line of a listing."""

    workflow_id: str
    execution_id: UUID
    type: str
    queue: str
    state: str
    attempt: int
    created_at: datetime
    closed_at: datetime | None
    parent_workflow_id: str | None
    search_attributes: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Description:
    """One run in full. `build_id` is the build it is pinned to; `error` tells why its last decision failed; `activities` are
    those in flight."""

    workflow_id: str
    execution_id: UUID
    type: str
    queue: str
    build_id: str | None
    partition: int
    state: str
    created_at: datetime
    closed_at: datetime | None
    deadline: datetime | None
    due_at: datetime | None
    attempt: int
    priority: int
    input: Any
    result: Any
    failure: Failure | None
    error: Failure | None
    strikes: int
    memo: Any
    search_attributes: dict[str, Any]
    parent_workflow_id: str | None
    continued_from: UUID | None
    continued_to: UUID | None
    retry_of_exec_id: UUID | None
    retried_as: UUID | None
    reset_of_exec_id: UUID | None
    reset_decision: int | None
    rerun_of_exec_id: UUID | None
    retry: RetrySpec | None
    chain_deadline: datetime | None
    timeout: float | None
    chain_timeout: float | None
    paused_at: datetime | None
    legal_hold: dict[str, Any] | None
    erased_at: datetime | None
    decisions: int
    events: int
    unread_messages: int
    activities: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Signalled:
    """`routed_execution_id` is given where another execution took the signal than the handle was made for (L-8)."""

    workflow_id: str
    routed_execution_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class ChainLink:
    """One run of a chain. `link` says how it came about from `came_from`: start, retry, continued, reset (from the end of
    `reset_decision`) or rerun."""

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


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`result_snapshot`: the state now, with the result or failure of a closed run."""

    state: str
    result: Any = None
    failure: Failure | None = None


def _json(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)


def _failure(text: str | None) -> Failure | None:
    return None if text is None else decode_failure(text)


class WorkflowHandle(Operated, Generic[T]):
    """A logical run: all attempts of it, and what it continues as.

    Acts go to the open run of the workflow id; a handle that was made with an `execution_id` sends them to the live attempt
    of that execution, and to no other run of the id. Looking (describe, history, stack, …) is about one execution: that
    which the handle was made for, else the newest.
    """

    def __init__(
        self,
        site: Site,
        workflow_id: str,
        execution_id: UUID | None,
        definition: WorkflowDefinition | None,
        *,
        pinned: bool = False,
    ) -> None:
        self._attempt = execution_id if pinned else None
        self._site, self.execution_id, self._definition = site, execution_id, definition
        self.id = check_name("id", workflow_id, WORKFLOW_ID_CAP)

    def __repr__(self) -> str:
        return f"<WorkflowHandle {self.id}>"

    async def _execution(self) -> UUID:
        """The execution it was made for, else the newest."""
        if self.execution_id is not None:
            return self.execution_id
        latest = await self._site.latest.submit(self.id)
        if latest is None:
            raise WorkflowNotFound(f"no run has the workflow id {self.id!r}")
        found: UUID = latest["execution_id"]
        return found

    # --- results

    async def result(self, *, timeout: Span = None) -> T:
        """Waits for the end. Raises `WorkflowFailedError` when it did not complete, `TimeoutError` after `timeout`."""
        span = seconds("timeout", timeout)
        work = follow.result(self._site, await self._execution())
        try:
            outcome = await (work if span is None else asyncio.wait_for(work, span))
        except TimeoutError:
            raise TimeoutError(f"workflow {self.id!r} did not end within {span:g} s") from None
        return self._value(outcome)

    def _value(self, outcome: Outcome) -> T:
        if outcome.erased:
            raise PayloadErased(f"the payloads of execution {outcome.execution_id} of {self.id!r} were erased")
        if outcome.state == "COMPLETED":
            return self._decoded(outcome.result or "null", outcome.type)  # type: ignore[no-any-return]
        failure = _failure(outcome.failure) or Failure(outcome.state.lower(), outcome.state)
        error = WorkflowFailedError(self.id, outcome.state, failure.message, type=failure.type)
        error.__cause__ = error_of(failure)
        raise error

    def _decoded(self, text: str, type: str) -> Any:
        """Typed by the definition, unless the run ended as another type (continue-as-new)."""
        definition = self._definition
        if definition is None or definition.name != type:
            return msgspec.json.decode(text)
        return definition.signature.decode_result(text)

    async def result_snapshot(self, *, wait: Span = None) -> Snapshot:
        """The state now, or after the end of the logical run if that comes within `wait`."""
        execution_id, patience = await self._execution(), seconds("wait", wait, zero=True)
        if patience:
            try:
                async with asyncio.timeout(patience):
                    execution_id = (await follow.result(self._site, execution_id)).execution_id
            except TimeoutError:
                pass
        while True:
            live = await live_attempt(self._site, execution_id)
            if live["open"]:
                return Snapshot(live["state"])
            if live["continued_to"] is None:
                break
            execution_id = live["continued_to"]
        row = (await executions.outcomes(self._site.db, [live["execution_id"]]))[live["execution_id"]]
        readable = row["result"] is not None and row["erased_at"] is None
        value = self._decoded(row["result"], row["type"]) if readable else None
        return Snapshot(row["state"], value, _failure(row["failure"]))

    # --- talking to it

    async def signal(self, signal: Any, *args: Any, idempotency_key: str | None = None) -> Signalled:
        """Returns once the signal is durable, and where it went. A key is delivered once per logical run."""
        name, raw, _ = handler_call("signal", signal, args, self._definition)
        if idempotency_key is not None:
            check_name("idempotency_key", idempotency_key, KEY_CAP)
        with calling("signal", name, workflow_id=self.id):
            taken = await message.signal(self._site, self.id, name, raw, idempotency_key, self._attempt)
        return Signalled(self.id, taken if self.execution_id not in (None, taken) else None)

    @overload
    async def query(self, query_: Callable[Concatenate[Any, ...], R], *args: Any, timeout: Span = 10.0) -> R: ...
    @overload
    async def query(self, query_: str, *args: Any, timeout: Span = 10.0) -> Any: ...
    async def query(self, query_: Any, *args: Any, timeout: Span = 10.0) -> Any:
        """Asks the run, open or closed. Raises `QueryFailed` or `QueryTimeout`."""
        name, raw, handler = handler_call("query", query_, args, self._definition)
        attempt = None if self._attempt is None else (await find(self._site, self.id, self._attempt))["execution_id"]
        with calling("query", name, workflow_id=self.id):
            answer = await query.query(self._site, self.id, attempt, name, raw, seconds("timeout", timeout) or 10.0)
        return msgspec.json.decode(answer) if handler is None else handler.signature.decode_result(answer)

    @overload
    async def update(
        self, update_: UpdateMethod[..., R], *args: Any, update_id: str | None = None, timeout: Span = 60.0
    ) -> R: ...
    @overload
    async def update(self, update_: str, *args: Any, update_id: str | None = None, timeout: Span = 60.0) -> Any: ...
    async def update(self, update_: Any, *args: Any, update_id: str | None = None, timeout: Span = 60.0) -> Any:
        """Waits for the handler's result. Raises `UpdateRejected`, `UpdateFailed`, or `NoAnswer` after `timeout`.

        The same `update_id` acts once and answers each time.
        """
        name, raw, handler = handler_call("update", update_, args, self._definition)
        if update_id is not None:
            check_name("update_id", update_id, KEY_CAP)
        try:
            patience = seconds("timeout", timeout) or 60.0
            with calling("update", name, workflow_id=self.id):
                answer = await update.update(self._site, self.id, name, raw, update_id, patience, self._attempt)
        except Answer as bad:
            raise _bad_end(name, bad) from error_of(bad.failure)
        return msgspec.json.decode(answer) if handler is None else handler.signature.decode_result(answer)

    async def start_update(self, update_: Any, *args: Any, update_id: str | None = None) -> str:
        """Returns the update's id once it is durable; `update_result` has its answer, from any handle of the workflow id."""
        name, raw, _ = handler_call("update", update_, args, self._definition)
        chosen = str(new_id()) if update_id is None else check_name("update_id", update_id, KEY_CAP)
        await update.admit(self._site, self.id, name, raw, chosen, self._attempt)
        return chosen

    async def update_result(self, update_id: str, *, timeout: Span = 60.0) -> Any:
        """What the update of this id gave, as plain data. Waits and raises like `update`; `UpdateNotFound` for another id."""
        check_name("update_id", update_id, KEY_CAP)
        try:
            answer = await update.later(self._site, self.id, update_id, seconds("timeout", timeout) or 60.0, self._attempt)
        except Answer as bad:
            raise _bad_end(update_id, bad) from error_of(bad.failure)
        return msgspec.json.decode(answer)

    async def cancel(self, reason: str = "") -> UUID:
        """Asks it to cancel; returns which execution has the request, once that is durable."""
        return await message.cancel(self._site, self.id, _reason(reason), self._attempt)

    async def terminate(self, reason: str = "", *, timeout: Span = 10.0) -> UUID:
        """Ends it without asking its code; returns which execution, once it is closed."""
        patience = seconds("timeout", timeout) or 10.0
        return await message.terminate(self._site, self.id, _reason(reason), attempt=self._attempt, patience=patience)

    async def pause(self, *, timeout: Span = 10.0) -> UUID:
        """Returns which execution, once it stands still: nothing is ingested and its deadlines wait, until `resume` or
        `terminate`."""
        return await pause.pause(self._site, self.id, self._attempt, seconds("timeout", timeout) or 10.0)

    async def resume(self) -> UUID:
        """Has a paused run go on, and returns which execution; one that is not paused just does."""
        return await pause.resume(self._site, self.id, self._attempt)

    async def reset(
        self, decision: int | None = None, *, signals: str = "reapply", reason: str = "", timeout: Span = 10.0
    ) -> WorkflowHandle[T]:
        """Forks this execution from the end of a decision (the last one that did not close it) and returns the new run.

        An open run is terminated. `signals` that came after the decision: reapply or drop. Raises `ResetRefused`,
        `WorkflowAlreadyStarted` where another run has the id, `NoAnswer`.
        """
        if signals not in again.SIGNALS:
            raise ConfigError("signals", f"must be one of {', '.join(again.SIGNALS)}, got {signals!r}")
        new = await again.reset(
            self._site,
            self.id,
            self.execution_id,
            decision=decision,
            signals=signals,
            reason=_reason(reason),
            patience=seconds("timeout", timeout) or 10.0,
        )
        return WorkflowHandle(self._site, self.id, new, self._definition)

    async def rerun(self, *, id: str | None = None) -> WorkflowHandle[T]:
        """Starts a new logical run from the input of this execution, under the same workflow id or another one.

        Raises `RerunRefused` for an attempt that was retried, `WorkflowAlreadyStarted` while a run of the id is open.
        """
        new_id = None if id is None else check_name("id", id, WORKFLOW_ID_CAP)
        new = await again.rerun(self._site, self.id, self.execution_id, new_workflow_id=new_id)
        return WorkflowHandle(self._site, id or self.id, new, self._definition)

    # --- looking at it

    async def describe(self) -> Description:
        """The execution it was made for, else the newest. Raises `WorkflowNotFound`."""
        return description_of(await exactly(self._site, self.id, self.execution_id))

    async def chain(self, *, limit: int = 1000) -> Sequence[ChainLink]:
        """All runs that belong together, oldest first: attempts, continuations, resets and reruns."""
        rows = await executions.chain(self._site.db, await self._execution(), limit)
        if not rows:
            raise WorkflowNotFound(f"no run has the execution id {self.execution_id}")
        return [ChainLink(**{**dict(row), "failure": _failure(row["failure"])}) for row in rows]

    async def history(self, *, after: int = 0, page: int = 1000) -> AsyncIterator[dict[str, Any]]:
        """Events in order, those after the event `after`: event_id, decision, at, type, event (a dict)."""
        execution_id = await self._execution()
        while True:
            rows = await history.events(self._site.db, execution_id, after=after, size=page)
            for row in rows:
                yield {**dict(row), "event": msgspec.json.decode(row["event"])}
            if len(rows) < page:
                return
            after = rows[-1]["event_id"]

    async def export_history(self) -> bytes:
        """The run as JSON that `harvest replay` reads."""
        execution_id = await self._execution()
        row = (await executions.load(self._site.db, [execution_id])).get(execution_id)
        if row is None:
            raise WorkflowNotFound(f"no run has the execution id {execution_id}")
        decisions = (await history.load(self._site.db, [execution_id]))[execution_id]
        return encode_history(History(info_of(row), decisions))


def _bad_end(name: str, bad: Answer) -> HarvestError:
    kind = UpdateRejected if bad.rejected else UpdateFailed
    return kind(name, bad.failure.message, type=bad.failure.type)


def _reason(reason: str) -> str:
    return check_name("reason", reason, 10_000) if reason != "" else ""


def description_of(row: Row) -> Description:
    fields = dict(row)
    for name in ("input", "result", "memo", "search_attributes", "legal_hold"):
        fields[name] = _json(fields[name])
    fields["search_attributes"] = fields["search_attributes"] or {}
    fields["failure"], fields["error"] = _failure(fields["failure"]), _failure(fields["error"])
    fields["retry"] = retry_of(fields["retry"])
    fields["activities"] = _json(fields["activities"]) or []
    fields["strikes"] = fields["strikes"] or 0
    fields.pop("task_state")
    fields["build_id"] = fields.pop("pool").partition("@")[2] or None
    return Description(**fields)


def summary_of(row: Row) -> RunSummary:
    fields = dict(row)
    fields["search_attributes"] = _json(fields["search_attributes"]) or {}
    return RunSummary(**fields)
