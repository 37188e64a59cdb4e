"""What activity code imports: `activity.defn`, and what may be called inside an activity.

An activity does the work that touches the world. It runs at least once; its result is recorded exactly
once. Outside a workflow a decorated function is the plain function.

    @activity.defn(start_to_close=timedelta(seconds=30), retry=RetryPolicy(max_attempts=5))
    async def charge(order: Order) -> Payment: ...
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, overload

import msgspec

from harvest.core.events import DEFAULT_OPTIONS, ActivityOptions
from harvest.core.instance import Instance, current_instance
from harvest.definitions.activity import ActivityDefinition
from harvest.definitions.options import RetryPolicy, Span, activity_options
from harvest.definitions.workflow import DEFINITION
from harvest.errors import DefinitionError, HarvestError

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ActivityInfo:
    """`attempt` counts from 1. `heartbeat_details` are those of the last attempt that gave any."""

    name: str
    workflow_id: str
    execution_id: str
    seq: int
    attempt: int
    queue: str
    heartbeat_details: tuple[Any, ...] = ()

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of this step: hand it to systems that de-duplicate."""
        return f"{self.execution_id}/{self.seq}"


class AttemptContext(Protocol):
    """What runs an attempt provides to the code in it."""

    @property
    def info(self) -> ActivityInfo: ...

    @property
    def cancelled(self) -> bool: ...

    def heartbeat(self, details: tuple[Any, ...]) -> None: ...


current_attempt: ContextVar[AttemptContext] = ContextVar("harvest_attempt")


def _attempt(what: str) -> AttemptContext:
    try:
        return current_attempt.get()
    except LookupError:
        raise HarvestError(f"activity.{what}() works only inside a running activity") from None


def info() -> ActivityInfo:
    """Facts about the attempt that is running."""
    return _attempt("info").info


def heartbeat(*details: Any) -> None:
    """Says that the activity is alive; `details` reach the next attempt if this one fails. JSON values."""
    _attempt("heartbeat").heartbeat(details)


def is_cancelled() -> bool:
    """True once the workflow gave up on this activity; sync activities should look now and then."""
    return _attempt("is_cancelled").cancelled


class Activity(Generic[P, T]):
    """A decorated activity. Calling it in a workflow is a durable call; elsewhere it is the function."""

    def __init__(self, definition: ActivityDefinition, options: ActivityOptions) -> None:
        functools.update_wrapper(self, definition.fn)
        self.__dict__[DEFINITION] = definition
        self.definition, self.options = definition, options

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        instance = current_instance()
        if instance is None:
            return self.definition.fn(*args, **kwargs)  # type: ignore[no-any-return]
        return self._durable(instance, args, kwargs)

    async def _durable(self, instance: Instance, args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
        return await self.start(instance, args, kwargs)  # type: ignore[no-any-return]

    def start(self, instance: Instance, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Issues the command; the future resolves with the decoded result."""
        signature = self.definition.signature
        return instance.start_activity(
            self.definition.name, signature.encode_args(args, kwargs), self.options, signature.decode_result
        )

    def with_options(
        self,
        *,
        queue: str | None = None,
        mode: str | None = None,
        local: bool | None = None,
        priority: int | None = None,
        start_to_close: Span = None,
        schedule_to_start: Span = None,
        schedule_to_close: Span = None,
        heartbeat: Span = None,
        retry: RetryPolicy | None = None,
    ) -> Activity[P, T]:
        """The same activity with other options for the calls made through the returned object."""
        given = {k: v for k, v in locals().items() if k != "self"}
        return Activity(self.definition, activity_options(self.options, **given))

    def __repr__(self) -> str:
        return repr(self.definition)


class SyncActivity(Activity[P, T]):
    """A plain `def` activity: it runs in a thread. Typed `Any` because a workflow awaits it and others call it."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        return super().__call__(*args, **kwargs)


class _Decorator(Protocol):
    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, T]]) -> Activity[P, T]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, fn: Callable[P, T]) -> SyncActivity[P, T]: ...


@overload
def defn(fn: Callable[P, Coroutine[Any, Any, T]], /) -> Activity[P, T]: ...  # type: ignore[overload-overlap]
@overload
def defn(fn: Callable[P, T], /) -> SyncActivity[P, T]: ...
@overload
def defn(
    *,
    name: str | None = None,
    local: bool = False,
    mode: str | None = None,
    queue: str | None = None,
    priority: int = 0,
    start_to_close: Span = None,
    schedule_to_start: Span = None,
    schedule_to_close: Span = None,
    heartbeat: Span = None,
    retry: RetryPolicy | None = None,
    transactional: bool = False,
) -> _Decorator: ...


def defn(
    fn: Any = None,
    /,
    *,
    name: str | None = None,
    local: bool = False,
    mode: str | None = None,
    queue: str | None = None,
    priority: int = 0,
    start_to_close: Span = None,
    schedule_to_start: Span = None,
    schedule_to_close: Span = None,
    heartbeat: Span = None,
    retry: RetryPolicy | None = None,
    transactional: bool = False,
) -> Any:
    """Declares an activity.

    `local` steps have no task row and run in the owner (short work); the default, eager, has a row and
    runs in the owner when it can; `mode="queue"` is claimed by any worker of the queue. Durations are
    timedeltas or seconds. `transactional` activities get the connection whose commit also records the
    result as their first argument. Raises `DefinitionError`.
    """
    localns = dict(sys._getframe(1).f_locals)
    if local and mode not in (None, "local"):
        raise DefinitionError(f"local=True and mode={mode!r} exclude each other")
    options = activity_options(
        DEFAULT_OPTIONS,
        local=local or None,
        mode=mode,
        queue=queue,
        priority=priority,
        start_to_close=start_to_close,
        schedule_to_start=schedule_to_start,
        schedule_to_close=schedule_to_close,
        heartbeat=heartbeat,
        retry=retry,
    )

    def decorate(target: Callable[..., Any]) -> Activity[Any, Any]:
        label: str = name or getattr(target, "__name__", None) or repr(target)
        definition = ActivityDefinition(target, label, options, transactional=transactional, localns=localns)
        return (Activity if definition.is_async else SyncActivity)(definition, options)

    return decorate if fn is None else decorate(fn)


def encode_details(details: tuple[Any, ...]) -> str:
    """Heartbeat details as stored. Raises `HarvestError` naming the heartbeat when they are not JSON."""
    try:
        return msgspec.json.encode(list(details)).decode()
    except (TypeError, ValueError) as exc:
        raise HarvestError(f"activity.heartbeat: details cannot be written as JSON: {exc}") from None
