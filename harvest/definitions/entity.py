"""An entity as registered: a class with a typed state, operations and queries. It is the kernel's `EntityProgram`."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable
from typing import Any, get_type_hints

import msgspec
from pydantic import BaseModel

from harvest.definitions.signature import Signature
from harvest.definitions.workflow import MARK, HandlerDefinition
from harvest.errors import (
    ApplicationError,
    DefinitionError,
    InputError,
    OperationFailed,
    PayloadError,
    UnknownHandlerError,
)
from harvest.failure import Failure, error_of
from harvest.payload.caps import STATE_CAP
from harvest.payload.convert import Converter


class OperationDefinition:
    """An operation: `raises` are the errors that callers get as what they are."""

    kind = "operation"

    def __init__(
        self,
        name: str,
        fn: Callable[..., Any],
        entity: str,
        raises: tuple[type[ApplicationError], ...],
        localns: dict[str, Any],
    ) -> None:
        self.name, self.fn, self.raises = name, fn, raises
        self.signature = Signature(fn, f"operation {name!r} of entity {entity!r}", skip=1, localns=localns)

    def arguments(self, input: msgspec.Raw) -> tuple[Any, ...]:
        try:
            return self.signature.decode_args(input)
        except PayloadError as exc:
            raise InputError(exc.where, exc.message.partition(": ")[2], hint=exc.hint) from None

    def call(self, target: Any, *arguments: Any) -> Any:
        return self.fn(target, *arguments)

    def encode(self, value: Any) -> msgspec.Raw:
        return self.signature.encode_result(value)

    def declared(self, exc: BaseException, failure: Failure) -> Failure:
        """A subclass of a declared error goes by the name that callers know."""
        if failure.type not in [kind.__name__ for kind in self.raises]:
            for kind in self.raises:
                if isinstance(exc, kind):
                    return msgspec.structs.replace(failure, type=kind.__name__)
        return failure

    def error_of(self, failure: Failure) -> Exception:
        """What a caller gets: one of `raises` where the type is among them, else `OperationFailed`."""
        return operation_error(self.name, failure, self.raises)


def operation_error(name: str, failure: Failure, raises: tuple[type[ApplicationError], ...] = ()) -> Exception:
    cause = error_of(failure)
    error: Exception = OperationFailed(name, failure.message, type=failure.type)
    for kind in raises:
        if kind.__name__ == failure.type:
            error = _typed(kind, failure)
    error.__cause__ = cause
    return error


def _typed(kind: type[ApplicationError], failure: Failure) -> ApplicationError:
    """The error as it was raised, without running its own constructor: that may want other arguments."""
    error: ApplicationError = kind.__new__(kind)
    details = msgspec.json.decode(failure.details) or []
    ApplicationError.__init__(error, failure.message, *details, type=failure.type, non_retryable=failure.non_retryable)
    return error


class EntityDefinition:
    """See `harvest.core.program.EntityProgram`. `indexes` are fields of the state that SQL over all entities finds fast."""

    retry = None  # an operation that fails leaves the entity as it was

    def __init__(self, cls: type, name: str, *, version: int, indexes: tuple[str, ...], localns: dict[str, Any]) -> None:
        if ":" in name:
            raise DefinitionError(f"entity {name!r}: a name must not contain ':'")
        if isinstance(version, bool) or not isinstance(version, int) or version < 1:
            raise DefinitionError(f"entity {name!r}: version must be a whole number from 1, got {version!r}")
        self.name, self.cls, self.version, self.indexes = name, cls, version, indexes
        self._localns = {**localns, cls.__name__: cls}
        self.operations: dict[str, OperationDefinition] = {}
        self.queries: dict[str, HandlerDefinition] = {}
        self.upgrader: Callable[[dict[str, Any], int], dict[str, Any]] | None = None
        self._converter: Converter | None = None
        self._check_init()
        self._collect()

    def _check_init(self) -> None:
        for p in inspect.signature(self.cls).parameters.values():
            if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                raise DefinitionError(
                    f"entity {self.name!r}: __init__ takes {p.name!r}; what an entity keeps is its state, made from defaults"
                )

    def _collect(self) -> None:
        for attribute in dir(self.cls):
            member = inspect.getattr_static(self.cls, attribute)
            mark = getattr(getattr(member, "__func__", member), MARK, None)
            if mark is None:
                continue
            kind, name = mark[0], mark[1]
            if kind == "operation":
                self.operations[self._free(name)] = OperationDefinition(name, member, self.name, mark[2], self._localns)
            elif kind == "query":
                self.queries[self._free(name)] = HandlerDefinition(
                    "query", name, member, self.name, self._localns, owner="entity"
                )
            elif kind == "upgrade":
                if self.upgrader is not None:
                    raise DefinitionError(f"entity {self.name!r}: two methods are marked @entity.upgrade")
                if not isinstance(member, staticmethod):
                    raise DefinitionError(f"entity {self.name!r}: @entity.upgrade marks a @staticmethod")
                self.upgrader = member.__func__
            else:
                raise DefinitionError(
                    f"entity {self.name!r}: {attribute!r} is a {kind} of a workflow",
                    hint="use @entity.operation or @entity.query",
                )
        if not self.operations:
            raise DefinitionError(f"entity {self.name!r} has no operation", hint="mark a method with @entity.operation")
        if self.version > 1 and self.upgrader is None:
            raise DefinitionError(
                f"entity {self.name!r}: version {self.version} needs an upgrade from the versions before",
                hint="mark a static method (stored: dict, version: int) -> dict with @entity.upgrade",
            )

    def _free(self, name: str) -> str:
        if name in self.operations or name in self.queries:
            raise DefinitionError(f"entity {self.name!r}: two handlers are named {name!r}")
        return name

    def prepare(self) -> None:
        """Builds every converter and the first state; `DefinitionError` names what cannot work."""
        if self._converter is not None:
            return
        hints = get_type_hints(self.cls, localns=self._localns, include_extras=True)
        kind = hints.get("state")
        if not (isinstance(kind, type) and (issubclass(kind, BaseModel) or dataclasses.is_dataclass(kind))):
            raise DefinitionError(
                f"entity {self.name!r}: state must be annotated with a pydantic model or a dataclass, got {kind!r}",
                hint="class Cart: state: CartState",
            )
        converter = Converter(kind, f"state of entity {self.name!r}")
        try:
            first = kind()
        except Exception as exc:
            raise DefinitionError(
                f"entity {self.name!r}: {kind.__name__}() cannot be made without arguments: {exc}",
                hint="give each field a default",
            ) from exc
        self._converter = converter
        try:
            default = self.dump_state(first)
            self.check_same(first, self.load_state(default))
        except PayloadError as exc:
            self._converter = None
            raise DefinitionError(f"entity {self.name!r}: its first state does not survive JSON: {exc}") from exc
        fields = set(json.loads(default)) | set(getattr(kind, "model_fields", ()))
        for field in self.indexes:
            if field.partition(".")[0] not in fields:
                raise DefinitionError(f"entity {self.name!r}: indexes names {field!r}, the state has {sorted(fields)}")
        for signature in [h.signature for h in self.operations.values()] + [h.signature for h in self.queries.values()]:
            signature.prepare()

    # --- the kernel's side --------------------------------------------------------------------------

    def initial(self) -> bytes:
        return self.dump_state(self.converter().annotation())

    def converter(self) -> Converter:
        self.prepare()
        assert self._converter is not None
        return self._converter

    def load_state(self, data: bytes) -> Any:
        return self.converter().load_whole(data, f"state of entity {self.name!r}")

    def check_same(self, left: Any, loaded: Any) -> None:
        """Raises `PayloadError` for a state that would come back as another one: nothing may be lost on the way."""
        if left == loaded:
            return
        names = getattr(type(left), "model_fields", None) or getattr(type(left), "__dataclass_fields__", None) or {}
        lost = [name for name in names if getattr(left, name, None) != getattr(loaded, name, None)]
        raise PayloadError(
            f"state of entity {self.name!r}",
            f"{', '.join(lost) or type(left).__name__} would not come back as it is: "
            + "; ".join(f"{name} {getattr(left, name)!r:.60} as {getattr(loaded, name)!r:.60}" for name in lost[:3]),
            hint="keep what JSON and the annotations can hold; private attributes are not kept",
        )

    def dump_state(self, state: Any) -> bytes:
        """Raises `PayloadError` for a state that is not of its type, `PayloadTooLarge` over the cap."""
        data = bytes(self.converter().dump_whole(state, f"state of entity {self.name!r}", STATE_CAP))
        if not data.startswith(b"{"):
            raise PayloadError(f"state of entity {self.name!r}", "must be a JSON object")
        return data

    def upgrade(self, data: bytes, version: int) -> bytes:
        """The state in this version of the schema, checked. Raises `DefinitionError` when it comes from a newer one."""
        if version > self.version:
            raise DefinitionError(
                f"entity {self.name!r}: its state has version {version}, this code knows {self.version}",
                hint="deploy the newer code again",
            )
        assert self.upgrader is not None
        try:
            stored = self.upgrader(json.loads(data), version)
        except BaseException as exc:
            raise DefinitionError(f"entity {self.name!r}: its upgrade from version {version} raised {exc!r:.200}") from exc
        try:
            text = json.dumps(stored, allow_nan=False).encode()
        except (TypeError, ValueError) as exc:
            raise PayloadError(f"upgrade of entity {self.name!r}", f"must return plain data: {exc}") from None
        return self.dump_state(self.load_state(text))

    def bind(self, state: Any) -> Any:
        target = self.cls()
        target.state = state
        return target

    def state_of(self, target: Any) -> Any:
        return target.state

    def operation(self, name: str) -> OperationDefinition:
        found = self.operations.get(name)
        if found is None:
            raise UnknownHandlerError("operation", name, self.name, list(self.operations), owner="entity")
        return found

    def query(self, name: str) -> HandlerDefinition:
        found = self.queries.get(name)
        if found is None:
            raise UnknownHandlerError("query", name, self.name, list(self.queries), owner="entity")
        return found

    def signal(self, name: str) -> None:
        return None

    def __repr__(self) -> str:
        return f"<entity {self.name}>"
