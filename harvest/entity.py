"""What entity code imports: the decorators, and what may be called inside an operation.

An entity is one object per (type, key), with a state that outlives every process. Its operations run one at a time
and answer their callers; what is in `workflow.` (timers, activities, children, calls to other entities) works in them.

    class CartState(BaseModel):
        items: list[Item] = []

    @entity.defn
    class Cart:
        state: CartState

        @entity.operation
        def add_item(self, item: Item) -> int:
            self.state.items.append(item)
            return len(self.state.items)

        @entity.query
        def count(self) -> int:
            return len(self.state.items)

State is the only thing that stays: `self` is made anew for each operation. After an error it is what it was before.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, overload

import msgspec

from harvest.core import events as ev
from harvest.core.entity import DELETE, GONE, EntityInstance
from harvest.core.instance import Instance, current_instance
from harvest.definitions.entity import EntityDefinition, OperationDefinition, operation_error
from harvest.definitions.registry import definition_of
from harvest.definitions.workflow import DEFINITION, MARK, json_args
from harvest.errors import ApplicationError, DefinitionError, HarvestError, OperationFailed, PayloadError, WorkflowMisuse
from harvest.failure import Failure
from harvest.ids import check_name, check_queue, entity_id, key_of
from harvest.payload.caps import INPUT_CAP

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])

__all__ = ["EntityCalls", "EntityInfo", "defn", "delete", "info", "operation", "query", "upgrade"]


@overload
def defn(cls: C, /) -> C: ...
@overload
def defn(*, name: str | None = None, version: int = 1, indexes: tuple[str, ...] | list[str] = ()) -> Callable[[C], C]: ...
def defn(cls: Any = None, /, *, name: str | None = None, version: int = 1, indexes: tuple[str, ...] | list[str] = ()) -> Any:
    """Declares an entity: a class with `state: SomeModel` and `@entity.operation` methods.

    `version` is that of the state's schema; raise it with an `@entity.upgrade` method that takes a stored state of an
    earlier one. `indexes` are fields of the state (`"status"`, `"address.city"`) that SQL over all entities finds fast.
    Raises `DefinitionError` for what cannot run.
    """
    localns = dict(sys._getframe(1).f_locals)

    def decorate(what: Any) -> Any:
        if not inspect.isclass(what):
            raise DefinitionError(f"entity.defn: expected a class, got {what!r}")
        label = check_name("name", name or what.__name__)
        definition = EntityDefinition(what, label, version=version, indexes=tuple(indexes), localns=localns)
        setattr(what, DEFINITION, definition)
        return what

    return decorate if cls is None else decorate(cls)


def _mark(fn: Any, *mark: Any) -> Any:
    setattr(fn, MARK, mark)
    return fn


@overload
def operation(fn: F, /) -> F: ...
@overload
def operation(*, name: str | None = None, raises: tuple[type[ApplicationError], ...] = ()) -> Callable[[F], F]: ...
def operation(fn: Any = None, /, *, name: str | None = None, raises: tuple[type[ApplicationError], ...] = ()) -> Any:
    """Marks a method that may change the state; sync or async. What it returns goes to the caller.

    Errors reach callers as `OperationFailed`, those in `raises` (subclasses of `ApplicationError`) as what they are.
    """
    for error in raises:
        if not (isinstance(error, type) and issubclass(error, ApplicationError)):
            raise DefinitionError(f"entity.operation: raises takes subclasses of ApplicationError, got {error!r}")
    if fn is None:
        return lambda method: _mark(method, "operation", name or method.__name__, tuple(raises))
    return _mark(fn, "operation", name or fn.__name__, tuple(raises))


@overload
def query(fn: F, /) -> F: ...
@overload
def query(*, name: str) -> Callable[[F], F]: ...
def query(fn: Any = None, /, *, name: str | None = None) -> Any:
    """Marks a method that reads the state. A query that changes it is an error."""
    if fn is None:
        return lambda method: _mark(method, "query", name or method.__name__)
    return _mark(fn, "query", name or fn.__name__)


def upgrade(fn: F) -> F:
    """Marks the static method `(stored: dict, version: int) -> dict` that brings a state of an earlier version up to
    this one. It runs when an entity is loaded; the result is recorded with the next operation."""
    _mark(fn.__func__ if isinstance(fn, staticmethod) else fn, "upgrade", "upgrade")
    return fn


@dataclass(frozen=True, slots=True)
class EntityInfo:
    """Who this is."""

    type: str
    key: str
    execution_id: str


def _current(what: str) -> EntityInstance:
    instance = current_instance()
    if not isinstance(instance, EntityInstance):
        raise HarvestError(f"entity.{what}() works only inside an entity")
    return instance


def info() -> EntityInfo:
    """Type and key of the entity whose code is running."""
    own = _current("info").info
    return EntityInfo(own.type, key_of(own.workflow_id), own.execution_id)


def delete() -> None:
    """The entity ends with this operation, if it succeeds. The next call to its key begins a new one."""
    _current("delete").request_delete()


class EntityCalls:
    """An entity as workflows and other entities call it. See `workflow.entity`."""

    def __init__(self, target: Any, key: str, queue: str | None) -> None:
        self.type, self.definition = entity_type(target)
        self.id = entity_id(self.type, key)
        self.queue = None if queue is None else check_queue("queue", queue)

    async def call(self, operation: Any, *args: Any) -> Any:
        """The operation's result. Raises what it raised (see `entity.operation`), `OperationCycle` where it would wait
        for its own caller. An entity that was deleted before the call began is begun anew."""
        name, raw, handler = operation_call(operation, args, self.definition)
        decode = msgspec.json.decode if handler is None else handler.signature.decode_result
        error_of = functools.partial(operation_error, name) if handler is None else handler.error_of
        return await self._send(name, raw, decode, error_of)

    async def delete(self) -> None:
        """Ends the entity, after the operations that were called before."""
        await self._send(DELETE, msgspec.Raw(b"[]"), msgspec.json.decode, functools.partial(operation_error, DELETE))

    async def _send(self, name: str, raw: msgspec.Raw, decode: Any, error_of: Callable[[Failure], Exception]) -> Any:
        instance: Instance | None = current_instance()
        if instance is None:
            raise HarvestError("workflow.entity() works only inside a workflow or an entity", hint="use client.entity(...)")

        def make(seq: int, path: tuple[str, ...]) -> ev.EntityCallSent:
            return ev.EntityCallSent(seq, self.id, self.type, name, raw, self.queue, path)

        while True:
            try:
                return await instance.call_entity(make, decode, error_of)
            except OperationFailed as exc:
                if exc.type != GONE:
                    raise


def entity_type(target: Any) -> tuple[str, EntityDefinition | None]:
    """(type, definition) of what a caller names: a class, or a text."""
    definition = definition_of(target)
    if isinstance(definition, EntityDefinition):
        return definition.name, definition
    if isinstance(target, str):
        if ":" in check_name("entity type", target):
            raise PayloadError("entity type", f"must not contain ':', got {target!r}")
        return target, None
    raise WorkflowMisuse(f"{target!r} is not an entity", hint="pass an @entity.defn class, or its name")


def operation_call(
    target: Any, args: tuple[Any, ...], definition: EntityDefinition | None
) -> tuple[str, msgspec.Raw, OperationDefinition | None]:
    """(name, input, definition) of an operation, typed where it is known."""
    mark: Any = ("operation", target) if isinstance(target, str) else getattr(target, MARK, ("", ""))
    if mark[0] != "operation" or not mark[1]:
        raise DefinitionError(f"{target!r} is not an operation", hint="pass an @entity.operation method, or its name")
    name = mark[1]
    if definition is None:
        if not isinstance(target, str):
            handler = OperationDefinition(name, target, target.__qualname__.rpartition(".")[0] or "?", mark[2], {})
            return name, handler.signature.encode_args(args), handler
        return name, json_args(f"operation {name!r}", args, INPUT_CAP), None
    handler = definition.operation(name)
    if not isinstance(target, str) and handler.fn is not target:
        raise DefinitionError(f"{target!r} is not an operation of entity {definition.name!r}")
    return name, handler.signature.encode_args(args), handler
