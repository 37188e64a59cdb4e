"""Every error Harvest raises, sorted by who has to act.

* **the author** fixes code or input: `DefinitionError`, `PayloadError`, `PayloadTooLarge`, `UnknownWorkflowError`, ...
* **the retry policy** tries again: `ApplicationError`, `ActivityTimeout`
* **the operator** mends the deployment: `HubUnreachable`, `HubNotMigrated`, `HubNewer`, `ConfigError`
* **the caller** decides: `WorkflowFailedError`, `WorkflowAlreadyStarted`, `WorkflowNotFound`, `UpdateRejected`

Errors carry their facts as attributes, and a hint where a remedy is known.
"""

from __future__ import annotations

from typing import Any


class HarvestError(Exception):
    """Base of every error of Harvest. `hint` says what to do about it, when that is known."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message if hint is None else f"{message}\n  hint: {hint}")
        self.message = message
        self.hint = hint


# --- the author -----------------------------------------------------------------------------------


class DefinitionError(HarvestError):
    """A workflow, activity, signal, update or query is declared in a way that cannot run."""


class PayloadError(HarvestError):
    """A value does not fit the declared type, or cannot be written as JSON. `where` names the parameter."""

    def __init__(self, where: str, problem: str, *, hint: str | None = None) -> None:
        super().__init__(f"{where}: {problem}", hint=hint)
        self.where = where


class InputError(PayloadError):
    """Stored arguments do not fit the handler they are for."""


class PayloadTooLarge(HarvestError):
    """A payload is over its cap (R-12). Sizes in bytes."""

    def __init__(self, where: str, size: int, cap: int) -> None:
        super().__init__(
            f"{where} is {size:,} bytes, over the cap of {cap:,}",
            hint="keep large data outside (object storage, your own table) and pass a reference",
        )
        self.where, self.size, self.cap = where, size, cap


class UnknownWorkflowError(HarvestError):
    """No definition of this workflow type is registered where it was asked for."""

    def __init__(self, name: str, where: str, known: list[str], *, kind: str = "workflow") -> None:
        super().__init__(
            f"{kind} type {name!r} is not known to {where}",
            hint=f"known types: {', '.join(sorted(known)) or 'none'}; add it to definitions=[...] of the worker",
        )
        self.name, self.known = name, known


class UnknownHandlerError(HarvestError):
    """The workflow or entity type has no signal, query, update or operation of this name."""

    def __init__(self, kind: str, name: str, workflow: str, known: list[str], *, owner: str = "workflow") -> None:
        super().__init__(
            f"{owner} {workflow!r} has no {kind} named {name!r}",
            hint=f"known: {', '.join(sorted(known)) or 'none'}",
        )
        self.kind, self.name, self.workflow, self.known = kind, name, workflow, known


class WorkflowMisuse(HarvestError):
    """Workflow code did something a durable run cannot do (foreign future, thread, socket, write in a query).

    It fails the decision, not the run (R-2): the run stays open and is retried once the code is mended.
    """


class UnknownActivityError(WorkflowMisuse):
    """Workflow code asked for an activity this worker should have but does not."""

    def __init__(self, name: str, queue: str, known: list[str]) -> None:
        super().__init__(
            f"activity {name!r} is not registered on queue {queue!r}",
            hint=f"known activities: {', '.join(sorted(known)) or 'none'}; add it to definitions=[...], "
            "or name the queue whose workers have it",
        )
        self.name, self.queue, self.known = name, queue, known


class NonDeterminismError(HarvestError):
    """Replay asked for something else than history recorded (R-3)."""

    def __init__(self, event_id: int, expected: str, got: str) -> None:
        super().__init__(
            f"event {event_id}: history has {expected}, the code asked for {got}",
            hint="gate the change with workflow.patched(...), or deploy the code that wrote this history",
        )
        self.event_id, self.expected, self.got = event_id, expected, got


class HistoryCapExceeded(HarvestError):
    """The run reached the hard cap of its history (R-11)."""


# --- failures of user work ------------------------------------------------------------------------


class ApplicationError(HarvestError):
    """Raise it from an activity, workflow or update to say exactly how it failed.

    `type` is the name callers and retry policies see; `non_retryable` stops retries; `details` are
    JSON-serializable values.
    """

    def __init__(self, message: str, *details: Any, type: str | None = None, non_retryable: bool = False) -> None:
        super().__init__(message)
        self.type = self.__class__.__name__ if type is None else str(type)
        self.details = details
        self.non_retryable = non_retryable


class ActivityError(HarvestError):
    """An activity failed for good. `type` and `__cause__` tell why; `attempt` is how often it was tried."""

    def __init__(self, activity: str, message: str, *, type: str, attempt: int = 1) -> None:
        super().__init__(f"activity {activity!r} failed: {message}")
        self.activity, self.type, self.attempt = activity, type, attempt


class ChildWorkflowError(HarvestError):
    """A child workflow did not complete. `type` and `__cause__` tell why."""

    def __init__(self, workflow_id: str, message: str, *, type: str) -> None:
        super().__init__(f"child workflow {workflow_id!r} failed: {message}")
        self.workflow_id, self.type = workflow_id, type


class ExternalWorkflowError(HarvestError):
    """A signal or cancel request to another workflow found no open run."""


class ActivityTimeout(HarvestError):
    """An attempt ran out of time. `kind`: start_to_close, schedule_to_start, schedule_to_close, heartbeat."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


# --- the caller -----------------------------------------------------------------------------------


class WorkflowFailedError(HarvestError):
    """`handle.result()` of a run that did not complete. `state` is its final state, `type` the error's name."""

    def __init__(self, workflow_id: str, state: str, message: str, *, type: str) -> None:
        super().__init__(f"workflow {workflow_id!r} is {state}: {message}")
        self.workflow_id, self.state, self.type = workflow_id, state, type


class WorkflowAlreadyStarted(HarvestError):
    """The workflow id is taken, under the conflict or reuse policy that was asked for."""

    def __init__(self, workflow_id: str, execution_id: object, state: str) -> None:
        super().__init__(
            f"workflow id {workflow_id!r} is taken: execution {execution_id} is {state}",
            hint="choose another id, or start with conflict='use_existing' or conflict='terminate_existing'"
            if state in ("RUNNING", "PAUSED")
            else "choose another id, or start with reuse='allow_duplicate'",
        )
        self.workflow_id, self.execution_id, self.state = workflow_id, execution_id, state


class WorkflowNotFound(HarvestError):
    """No run with this id, or none that is still open where an open one is needed."""


class WorkflowClosed(WorkflowNotFound):
    """The run is closed, and nothing follows it that could take the request."""

    def __init__(self, workflow_id: str, execution_id: object, state: str, *, hint: str | None = None) -> None:
        super().__init__(f"execution {execution_id} of {workflow_id!r} is {state}: it takes nothing any more", hint=hint)
        self.workflow_id, self.execution_id, self.state = workflow_id, execution_id, state


class ResetRefused(HarvestError):
    """The run cannot be forked there."""

    def __init__(self, execution_id: object, why: str, hint: str) -> None:
        super().__init__(f"execution {execution_id} cannot be reset: {why}", hint=hint)
        self.execution_id = execution_id


class EraseRefused(HarvestError):
    """The payloads of the run must not be erased now."""


class PayloadErased(HarvestError):
    """What is asked for was erased."""


class NotRedrivable(HarvestError):
    """The dead letter is about a run that cannot be tried again."""


class ActivityNotFound(HarvestError):
    """The run has no such activity task, or not in a state where this can be done."""


class RerunRefused(HarvestError):
    """The run cannot be started again from its input."""


class RetryChainTooLong(HarvestError):
    """The attempts of a run are more than a handle follows (L-7); addressing a later one, or the workflow id, works."""

    def __init__(self, execution_id: object, most: int) -> None:
        super().__init__(
            f"more than {most} attempts follow execution {execution_id}; none of them is taken for the live one",
            hint="address the workflow id, or cap RetryPolicy.max_attempts and HARVEST_MAX_WORKFLOW_ATTEMPTS",
        )
        self.execution_id = execution_id


class QueryFailed(HarvestError):
    """The query handler raised, or the run cannot be replayed. The run itself is untouched."""


class QueryTimeout(HarvestError):
    """No worker answered in time."""


class UpdateRejected(HarvestError):
    """The validator refused the update; nothing was recorded."""

    def __init__(self, name: str, message: str, *, type: str) -> None:
        super().__init__(f"update {name!r} was rejected: {message}")
        self.name, self.type = name, type


class UpdateFailed(HarvestError):
    """The update was accepted and its handler raised."""

    def __init__(self, name: str, message: str, *, type: str) -> None:
        super().__init__(f"update {name!r} failed: {message}")
        self.name, self.type = name, type


class UpdateNotFound(HarvestError):
    """No update of this id was sent to the workflow id."""


class NoAnswer(HarvestError):
    """The request is durable but nothing answered in time; ask again, or see whether a worker is running."""


class EntityNotFound(HarvestError):
    """No entity has this type and key: none of its operations was called yet, or it was deleted."""


class EntitySqlOff(HarvestError):
    """A worker cannot answer SQL over these entities: it is switched off there, or its table is too large or too old."""


class OperationFailed(HarvestError):
    """The operation raised; the entity is what it was before. `type` and `__cause__` tell why."""

    def __init__(self, name: str, message: str, *, type: str) -> None:
        super().__init__(f"operation {name!r} failed: {message}")
        self.name, self.type = name, type


class OperationRejected(HarvestError):
    """The entity has no such operation, or its arguments do not fit; nothing was recorded."""

    def __init__(self, name: str, message: str, *, type: str) -> None:
        super().__init__(f"operation {name!r} was rejected: {message}")
        self.name, self.type = name, type


class OperationCycle(HarvestError):
    """A call that would wait for itself: the entity it goes to waits for the caller."""

    def __init__(self, target: str, path: list[str]) -> None:
        super().__init__(
            f"{target!r} cannot be called from here, it waits for this call: {' -> '.join([*path, target])}",
            hint="hand over what is needed as an argument, or make the call from a workflow",
        )
        self.target, self.path = target, path


# --- the operator ---------------------------------------------------------------------------------


class ConfigError(HarvestError):
    """A setting is wrong. `field` names it."""

    def __init__(self, field: str, problem: str, *, hint: str | None = None) -> None:
        super().__init__(f"{field}: {problem}", hint=hint)
        self.field = field


class TokenExists(HarvestError):
    """There is a token of this name."""


class TokenNotFound(HarvestError):
    """There is no token of this name that this could be done to."""


class HubError(HarvestError):
    """The hub cannot serve."""


class HubUnreachable(HubError):
    """Postgres does not answer at this address, or refuses us."""


class HubNotMigrated(HubError):
    """The schema is missing or older than this code."""


class HubNewer(HubError):
    """The schema was migrated by a newer Harvest than this one."""


class HubBusy(HubError):
    """The hub's tables could not be locked in time; nothing has changed."""


class OwnerModeRefused(HarvestError):
    """The hub cannot be switched to owner mode now. `reasons` lists everything that is in the way."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__(
            "owner mode is refused:\n  - " + "\n  - ".join(reasons), hint="mend all of these, then enable it again"
        )
        self.reasons = reasons


class Fenced(HubError):
    """This worker lost its right to write; everything of that tenure is dropped."""
