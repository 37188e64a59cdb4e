"""A workflow as registered: a function or a class, with its handlers. It is the kernel's `Program`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import msgspec

from harvest.core.events import RetrySpec
from harvest.definitions.signature import Signature
from harvest.errors import DefinitionError, InputError, PayloadError, UnknownHandlerError
from harvest.payload.caps import SIGNAL_CAP, check_size

MARK = "__harvest_handler__"
DEFINITION = "__harvest_definition__"


class HandlerDefinition:
    """A signal, query or update method; `validator` belongs to updates."""

    def __init__(
        self, kind: str, name: str, fn: Callable[..., Any], workflow: str, localns: dict[str, Any], *, owner: str = "workflow"
    ) -> None:
        self.kind, self.name, self.fn = kind, name, fn
        self.validator: Callable[..., Any] | None = None
        cap = {"input_cap": SIGNAL_CAP} if kind == "signal" else {}
        self.signature = Signature(fn, f"{kind} {name!r} of {owner} {workflow!r}", skip=1, localns=localns, **cap)
        if kind == "query" and inspect.iscoroutinefunction(fn):
            raise DefinitionError(f"query {name!r} of {owner} {workflow!r} is async; a query answers at once, make it a def")

    def invoke(self, target: Any, input: msgspec.Raw) -> Any:
        try:
            arguments = self.signature.decode_args(input)
        except PayloadError as exc:
            raise InputError(exc.where, exc.message.partition(": ")[2], hint=exc.hint) from None
        return self.fn(target, *arguments)

    def validate(self, target: Any, input: msgspec.Raw) -> None:
        arguments = self.signature.decode_args(input)
        if self.validator is not None:
            self.validator(target, *arguments)

    def encode(self, value: Any) -> msgspec.Raw:
        return self.signature.encode_result(value)


class WorkflowDefinition:
    """See `harvest.core.instance.Program`. `cls` is None for a function."""

    def __init__(
        self, run: Callable[..., Any], name: str, *, cls: type | None, localns: dict[str, Any], retry: RetrySpec | None = None
    ) -> None:
        self.retry = retry
        if not inspect.iscoroutinefunction(run):
            raise DefinitionError(f"workflow {name!r}: {getattr(run, '__name__', run)!r} must be an async function")
        self.name, self.cls, self._run = name, cls, run
        self.signature = Signature(run, f"workflow {name!r}", skip=0 if cls is None else 1, localns=localns)
        self.handlers: dict[str, dict[str, HandlerDefinition]] = {"signal": {}, "query": {}, "update": {}}
        if cls is not None:
            self._check_init(cls)
            self._collect(cls, localns)

    def _check_init(self, cls: type) -> None:
        for p in list(inspect.signature(cls).parameters.values()):
            if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                raise DefinitionError(
                    f"workflow {self.name!r}: __init__ takes {p.name!r}; the class is made without arguments, "
                    "the input goes to the @workflow.run method"
                )

    def _collect(self, cls: type, localns: dict[str, Any]) -> None:
        members = [(name, inspect.getattr_static(cls, name)) for name in dir(cls)]
        for _, member in members:
            mark = getattr(member, MARK, None)
            if mark is None or mark[0] == "validator":
                continue
            kind, name = mark
            if kind == "run":
                continue
            fn = getattr(member, "fn", member)
            if name in self.handlers[kind]:
                raise DefinitionError(f"workflow {self.name!r}: two {kind} handlers are named {name!r}")
            handler = self.handlers[kind][name] = HandlerDefinition(kind, name, fn, self.name, localns)
            handler.validator = getattr(member, "validator_fn", None)

    def create(self) -> Any:
        return None if self.cls is None else self.cls()

    def run(self, target: Any, input: msgspec.Raw) -> Any:
        arguments = self.signature.decode_args(input)
        return self._run(*arguments) if self.cls is None else self._run(target, *arguments)

    def encode_result(self, value: Any) -> msgspec.Raw:
        return self.signature.encode_result(value)

    def signal(self, name: str) -> HandlerDefinition | None:
        return self.handlers["signal"].get(name)

    def handler(self, kind: str, name: str) -> HandlerDefinition:
        handler = self.handlers[kind].get(name)
        if handler is None:
            raise UnknownHandlerError(kind, name, self.name, list(self.handlers[kind]))
        return handler

    def update(self, name: str) -> HandlerDefinition:
        return self.handler("update", name)

    def query(self, name: str) -> HandlerDefinition:
        return self.handler("query", name)

    def prepare(self) -> None:
        """Builds every converter; `DefinitionError` names what cannot work."""
        self.signature.prepare()
        for handlers in self.handlers.values():
            for handler in handlers.values():
                handler.signature.prepare()

    def __repr__(self) -> str:
        return f"<workflow {self.name}>"


def json_args(where: str, args: tuple[Any, ...], cap: int) -> msgspec.Raw:
    """Arguments of a call by name, where no annotations are known: plain JSON values only."""
    try:
        raw = msgspec.json.encode(list(args))
    except (TypeError, ValueError) as exc:
        raise PayloadError(where, f"cannot be written as JSON: {exc}", hint="pass plain data") from None
    return msgspec.Raw(check_size(where, raw, cap))
