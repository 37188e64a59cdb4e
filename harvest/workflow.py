"""What workflow code imports: the decorators, and the verbs that may be called inside a workflow.

Workflow code is an ordinary coroutine on a deterministic asyncio loop: `asyncio.sleep`, `gather`, `wait`,
`timeout`, `TaskGroup`, `Event`, `Lock` and `Queue` work and are durable. What asyncio has no word for is here.

    @workflow.defn
    async def checkout(order: Order) -> Receipt:
        payment = await charge(order)
        await asyncio.sleep(86_400)
        return Receipt(payment=payment)
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import random as random_module
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, MutableMapping
from datetime import UTC, datetime, timedelta
from typing import Any, Concatenate, Generic, NoReturn, ParamSpec, TypeVar, overload
from uuid import UUID

import msgspec

from harvest.activity import Activity
from harvest.clock import at_us
from harvest.core import events as ev
from harvest.core.instance import Instance, current_instance
from harvest.core.lint import lint_workflow
from harvest.core.program import ContinueAsNew, RunInfo
from harvest.definitions.options import RetryPolicy, Span, activity_options, retry_spec, seconds
from harvest.definitions.registry import definition_of
from harvest.definitions.workflow import DEFINITION, MARK, WorkflowDefinition, json_args
from harvest.entity import EntityCalls
from harvest.errors import DefinitionError, HarvestError, PayloadError, WorkflowMisuse
from harvest.ids import ENTITY, WORKFLOW_ID_CAP, check_name, check_priority, check_queue, is_entity
from harvest.payload.caps import INPUT_CAP, RESULT_CAP, SIGNAL_CAP
from harvest.payload.convert import Converter

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound=type)

__all__ = [
    "ChildHandle",
    "ExternalHandle",
    "RunInfo",
    "as_completed",
    "continue_as_new",
    "defn",
    "deprecate_patch",
    "entity",
    "execute_activity",
    "execute_child",
    "external",
    "info",
    "logger",
    "now",
    "patched",
    "query",
    "random",
    "receive",
    "run",
    "should_continue_as_new",
    "side_effect",
    "signal",
    "sleep",
    "start_activity",
    "start_child",
    "update",
    "upsert_search_attributes",
    "uuid4",
    "wait_until",
]


def _instance(what: str) -> Instance:
    instance = current_instance()
    if instance is None:
        raise HarvestError(f"workflow.{what}() works only inside workflow code")
    return instance


# --- definitions ----------------------------------------------------------------------------------


class WorkflowFunction(Generic[P, T]):
    """A function workflow. Calling it in a workflow runs a child; elsewhere it is the function."""

    def __init__(self, definition: WorkflowDefinition, fn: Callable[P, Coroutine[Any, Any, T]]) -> None:
        functools.update_wrapper(self, fn)
        self.__dict__[DEFINITION] = definition
        self.definition, self.fn = definition, fn

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        if current_instance() is None:
            return self.fn(*args, **kwargs)
        return self._child(args, kwargs)

    async def _child(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
        return await _start_child(self.definition, args, kwargs).result()  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return repr(self.definition)


class UpdateMethod(Generic[P, T]):
    """An update handler; `@name.validator` marks the method that may refuse it."""

    def __init__(self, fn: Callable[..., Any], name: str) -> None:
        functools.update_wrapper(self, fn)  # type: ignore[arg-type]
        self.fn, self.validator_fn = fn, None
        setattr(self, MARK, ("update", name))

    validator_fn: Callable[..., Any] | None

    def validator(self, fn: Callable[..., None]) -> Callable[..., None]:
        if inspect.iscoroutinefunction(fn):
            raise DefinitionError(f"validator {fn.__name__!r} is async; a validator decides at once, make it a def")
        self.validator_fn = fn
        return fn

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self.fn, instance)


@overload
def defn(target: C, /) -> C: ...
@overload
def defn(target: Callable[P, Coroutine[Any, Any, T]], /) -> WorkflowFunction[P, T]: ...
@overload
def defn(*, name: str | None = None, retry: RetryPolicy | None = None) -> Callable[[Any], Any]: ...


def defn(target: Any = None, /, *, name: str | None = None, retry: RetryPolicy | None = None) -> Any:
    """Declares a workflow: an async function, or a class with one `@workflow.run` method.

    With `retry` a run that fails begins again from its start, as the next attempt of the same logical run; a start may say
    otherwise.

    Raises `DefinitionError` for what cannot run. Calls that would break replay are refused here
    (`asyncio.as_completed`) or warned of (clocks, dice, files).
    """
    localns, spec = dict(sys._getframe(1).f_locals), retry_spec(retry)

    def decorate(what: Any) -> Any:
        label: str = name or getattr(what, "__name__", None) or repr(what)
        if inspect.isclass(what):
            runs = [m for m in vars(what).values() if getattr(m, MARK, ("",))[0] == "run"]
            if not runs:
                runs = [m for b in what.__mro__ for m in vars(b).values() if getattr(m, MARK, ("",))[0] == "run"][:1]
            if len(runs) != 1:
                raise DefinitionError(f"workflow {label!r} needs exactly one @workflow.run method, it has {len(runs)}")
            definition = WorkflowDefinition(runs[0], label, cls=what, localns={**localns, what.__name__: what}, retry=spec)
            lint_workflow(what, label)
            setattr(what, DEFINITION, definition)
            return what
        definition = WorkflowDefinition(what, label, cls=None, localns=localns, retry=spec)
        lint_workflow(what, label)
        return WorkflowFunction(definition, what)

    return decorate if target is None else decorate(target)


F = TypeVar("F", bound=Callable[..., Any])


def run(fn: F) -> F:
    """Marks the method that is the workflow."""
    setattr(fn, MARK, ("run", fn.__name__))
    return fn


def _mark(kind: str, fn: Any, name: str | None) -> Any:
    def decorate(method: Any) -> Any:
        setattr(method, MARK, (kind, name or method.__name__))
        return method

    return decorate if fn is None else decorate(fn)


@overload
def signal(fn: F, /) -> F: ...
@overload
def signal(*, name: str) -> Callable[[F], F]: ...
def signal(fn: Any = None, /, *, name: str | None = None) -> Any:
    """Marks a method that takes a signal; sync or async."""
    return _mark("signal", fn, name)


@overload
def query(fn: F, /) -> F: ...
@overload
def query(*, name: str) -> Callable[[F], F]: ...
def query(fn: Any = None, /, *, name: str | None = None) -> Any:
    """Marks a method that answers a query. It reads; it must not change anything."""
    return _mark("query", fn, name)


@overload
def update(fn: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]], /) -> UpdateMethod[P, T]: ...
@overload
def update(fn: Callable[Concatenate[Any, P], T], /) -> UpdateMethod[P, T]: ...
@overload
def update(*, name: str) -> Callable[[Callable[..., Any]], UpdateMethod[..., Any]]: ...
def update(fn: Any = None, /, *, name: str | None = None) -> Any:
    """Marks a method that takes an update: a signal with an answer, refusable by a validator."""

    def decorate(method: Any) -> Any:
        return UpdateMethod(method, name or method.__name__)

    return decorate if fn is None else decorate(fn)


# --- facts and determinism ------------------------------------------------------------------------


def info() -> RunInfo:
    """Who this run is."""
    return _instance("info").info


def now() -> datetime:
    """The time of the current decision, in UTC; the same on replay."""
    return at_us(_instance("now").now_us).astimezone(UTC)


def random() -> random_module.Random:
    """Dice that fall the same way on replay."""
    instance = _instance("random")
    instance.check_writable("roll dice")
    return instance.random


def uuid4() -> UUID:
    """A random UUID that is the same on replay."""
    return UUID(int=random().getrandbits(128), version=4)


def side_effect(make: Callable[[], T], type: type[T] | None = None) -> T:
    """Calls `make` once and records what it returned; a replay reads the record.

    The value must be JSON; `type` validates it on the way back. For anything that can fail, use an activity.
    """
    converter = Converter(Any if type is None else type, "side_effect")
    raw = _instance("side_effect").side_effect(lambda: converter.dump(make(), "side_effect", RESULT_CAP))
    return converter.load(raw, "side_effect")  # type: ignore[no-any-return]


def patched(patch_id: str) -> bool:
    """True for runs that may take the new path of a change; the answer is recorded once per run."""
    return _instance("patched").patched(patch_id)


def deprecate_patch(patch_id: str) -> None:
    """Keeps histories that recorded `patched(patch_id)` replayable after the old path is gone."""
    _instance("deprecate_patch").patched(patch_id, deprecated=True)


def should_continue_as_new() -> bool:
    """True once history passed the advised length (10,240 events)."""
    instance = _instance("should_continue_as_new")
    return instance.events >= instance.history_advice


def continue_as_new(*args: Any, workflow: Any = None) -> NoReturn:
    """Ends this run and starts the same workflow id afresh with `args`; unread signals go along.

    `workflow` continues as another type.
    """
    instance = _instance("continue_as_new")
    instance.check_writable("continue as new")
    definition: Any = instance.program if workflow is None else definition_of(workflow)
    if isinstance(workflow, str):
        raise ContinueAsNew(workflow, json_args(f"workflow {workflow!r}", args, INPUT_CAP))
    if not isinstance(definition, WorkflowDefinition):
        raise PayloadError("continue_as_new", f"{workflow!r} is not a workflow")
    raise ContinueAsNew(definition.name, definition.signature.encode_args(args))


def upsert_search_attributes(**attributes: Any) -> None:
    """Sets what `client.list` can filter by; None removes a key. JSON values."""
    raw = json_args("upsert_search_attributes", (attributes,), SIGNAL_CAP)
    if b"\\u0000" in bytes(raw):
        raise PayloadError("upsert_search_attributes", "a NUL character cannot be searched for")
    _instance("upsert_search_attributes").upsert_attributes(msgspec.Raw(bytes(raw)[1:-1]))


class _Logger(logging.LoggerAdapter[logging.Logger]):
    """Silent on replay; adds who is speaking."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        instance = current_instance()
        if instance is not None:
            msg = f"[{instance.info.type} {instance.info.workflow_id}] {msg}"
        return msg, kwargs

    def isEnabledFor(self, level: int) -> bool:
        instance = current_instance()
        quiet = instance is not None and (instance.replaying or instance.sealed)
        return not quiet and super().isEnabledFor(level)


logger = _Logger(logging.getLogger("harvest.workflow"), {})


# --- waiting --------------------------------------------------------------------------------------


async def sleep(span: timedelta | float) -> None:
    """A durable timer; `asyncio.sleep` that also takes a timedelta."""
    await asyncio.sleep(span.total_seconds() if isinstance(span, timedelta) else span)


async def wait_until(check: Callable[[], object], *, timeout: timedelta | float | None = None) -> None:
    """Waits until `check()` is true; it is asked again whenever something happened in this run.

    Raises `TimeoutError` after `timeout`.
    """
    instance = _instance("wait_until")
    span = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if check():
        return
    async with asyncio.timeout(span):
        await instance.wait_condition(check)


@overload
async def receive(name: str, type: type[T]) -> T: ...
@overload
async def receive(name: str, type: Any = Any) -> Any: ...
async def receive(name: str, type: Any = Any) -> Any:
    """The argument of the next signal `name` that no handler takes (function workflows); None if it has none.

    A signal whose argument does not fit `type` is logged and skipped.
    """
    converter = Converter(tuple[type], f"signal {name!r}")
    while True:
        raw = await _instance("receive").receive(name)
        if bytes(raw) == b"[]":
            return None
        try:
            return converter.load(raw, f"signal {name!r}")[0]
        except PayloadError as exc:
            logger.warning("signal %r skipped: %s", name, exc)


async def as_completed(awaitables: Iterable[Awaitable[T]]) -> AsyncIterator[T]:
    """Results in the order they arrive. (`asyncio.as_completed` starts its coroutines in an order that
    changes from run to run, so it is refused in workflows.)"""
    queue: asyncio.Queue[asyncio.Future[T]] = asyncio.Queue()
    futures = [asyncio.ensure_future(a) for a in awaitables]
    for future in futures:
        future.add_done_callback(queue.put_nowait)
    try:
        for _ in futures:
            yield (await queue.get()).result()
    finally:
        for future in futures:
            future.cancel()


# --- activities -----------------------------------------------------------------------------------


def start_activity(activity: Activity[Any, T] | str, *args: Any, result_type: Any = Any, **options: Any) -> asyncio.Future[T]:
    """Starts an activity and returns its future. By name for one that lives in another codebase.

    Options as in `activity.defn`: queue, mode, start_to_close, retry, ...
    """
    instance = _instance("start_activity")
    if isinstance(activity, str):
        chosen = activity_options(ev.DEFAULT_OPTIONS, **options)
        converter = Converter(result_type, f"result of activity {activity!r}")
        raw = json_args(f"activity {activity!r}", args, INPUT_CAP)
        return instance.start_activity(activity, raw, chosen, lambda r: converter.load(r, f"activity {activity!r}"))
    if not isinstance(activity, Activity):
        raise WorkflowMisuse(f"start_activity: {activity!r} is not an activity", hint="decorate it with @activity.defn")
    return (activity.with_options(**options) if options else activity).start(instance, args, {})  # type: ignore[no-any-return]


async def execute_activity(activity: Activity[Any, T] | str, *args: Any, **options: Any) -> T:
    """`start_activity`, awaited. The typed way to await a sync activity."""
    return await start_activity(activity, *args, **options)


# --- children and other runs ----------------------------------------------------------------------


class ChildHandle(Generic[T]):
    """A child under way. Awaiting it (or `result()`) gives its result; cancelling that wait cancels the child."""

    def __init__(self, workflow_id: str, future: asyncio.Future[T]) -> None:
        self.id, self.future = workflow_id, future

    async def result(self) -> T:
        return await self.future

    def __await__(self) -> Any:
        return self.future.__await__()

    def cancel(self) -> None:
        self.future.cancel()

    async def signal(self, signal: Any, *args: Any) -> None:
        await external(self.id).signal(signal, *args)


def start_child(
    workflow: Any,
    *args: Any,
    id: str | None = None,
    queue: str | None = None,
    parent_close: str = "terminate",
    timeout: Span = None,
    priority: int = 0,
    retry: RetryPolicy | None = None,
    result_type: Any = Any,
) -> ChildHandle[Any]:
    """Starts a child workflow (decorated object, or a name) and returns its handle at once.

    `parent_close` says what becomes of it when this run closes first: terminate, cancel or abandon.
    The parent hears of the last attempt of a child with `retry`. A child whose id is taken fails with `ChildWorkflowError`
    of type WorkflowAlreadyStarted.
    """
    return _start_child(
        workflow,
        args,
        {},
        id=id,
        queue=queue,
        parent_close=parent_close,
        timeout=timeout,
        priority=priority,
        retry=retry,
        result_type=result_type,
    )


async def execute_child(workflow: Any, *args: Any, **options: Any) -> Any:
    """`start_child`, awaited."""
    return await start_child(workflow, *args, **options).result()


def _start_child(
    workflow: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    id: str | None = None,
    queue: str | None = None,
    parent_close: str = "terminate",
    timeout: Span = None,
    priority: int = 0,
    retry: RetryPolicy | None = None,
    result_type: Any = Any,
) -> ChildHandle[Any]:
    instance = _instance("start_child")
    if parent_close not in ("terminate", "cancel", "abandon"):
        raise PayloadError("parent_close", f"must be 'terminate', 'cancel' or 'abandon', got {parent_close!r}")
    check_priority("priority", priority)
    if id is not None:
        check_name("id", id, WORKFLOW_ID_CAP)
        if is_entity(id):
            raise PayloadError("id", f"must not begin with '@', got {id!r}: such ids are those of entities")
    if queue is not None:
        check_queue("queue", queue)
    span, spec = seconds("timeout", timeout), retry_spec(retry)
    definition = definition_of(workflow)
    if isinstance(definition, WorkflowDefinition):
        name, raw, decode = definition.name, definition.signature.encode_args(args, kwargs), definition.signature.decode_result
    elif isinstance(workflow, str):
        converter = Converter(result_type, f"result of workflow {workflow!r}")
        name, raw = workflow, json_args(f"workflow {workflow!r}", args, INPUT_CAP)
        decode = functools.partial(converter.load, where=f"workflow {name!r}")
    else:
        raise WorkflowMisuse(f"start_child: {workflow!r} is not a workflow", hint="decorate it with @workflow.defn")

    def make(seq: int) -> ev.ChildStarted:
        own = instance.info
        child_id = id or f"{own.workflow_id.removeprefix(ENTITY)}/{seq}-{own.seed & 0xFFFFFF:06x}"
        return ev.ChildStarted(seq, child_id, name, raw, queue, parent_close, span, priority, spec)

    future = instance.start_child(make, decode)
    return ChildHandle(future.name, future)


class ExternalHandle:
    """Another run, addressed by workflow id."""

    def __init__(self, workflow_id: str) -> None:
        if is_entity(workflow_id):
            raise WorkflowMisuse(f"{workflow_id!r} is an entity", hint="call an operation: workflow.entity(Type, key)")
        self.id = workflow_id

    async def signal(self, signal: Any, *args: Any) -> None:
        """Returns once the signal is stored; `ExternalWorkflowError` where no run is open."""
        mark = ("signal", signal) if isinstance(signal, str) else getattr(signal, MARK, ("", ""))
        if mark[0] != "signal":
            raise PayloadError("signal", f"{signal!r} is not a signal", hint="pass a @workflow.signal method or its name")
        name = mark[1]
        raw = json_args(f"signal {name!r}", args, SIGNAL_CAP) if isinstance(signal, str) else _typed(signal, name, args)
        await _instance("external").send_external(lambda seq: ev.ExternalSignalSent(seq, self.id, name, raw))

    async def cancel(self, reason: str = "") -> None:
        await _instance("external").send_external(lambda seq: ev.ExternalCancelSent(seq, self.id, reason))


def _typed(signal: Any, name: str, args: tuple[Any, ...]) -> msgspec.Raw:
    hints = list(inspect.signature(signal).parameters.values())[1:]
    if len(args) > len(hints):
        raise PayloadError(f"signal {name!r}", f"takes {len(hints)} argument(s), got {len(args)}")
    return Converter(list[Any], f"signal {name!r}").dump(list(args), f"signal {name!r}", SIGNAL_CAP)


def entity(type: Any, key: str, *, queue: str | None = None) -> EntityCalls:
    """An entity (class or name of its type) to call from here; `queue` names the workers that keep it, else this run's own."""
    _instance("entity")
    return EntityCalls(type, key, queue)


def external(workflow_id: str) -> ExternalHandle:
    """A handle for signalling or cancelling another run."""
    return ExternalHandle(workflow_id)
