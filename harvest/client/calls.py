"""What a caller names (a decorated object, a method, a text) as name and payload."""

from __future__ import annotations

from typing import Any

import msgspec

from harvest.definitions.entity import EntityDefinition
from harvest.definitions.registry import definition_of
from harvest.definitions.workflow import MARK, HandlerDefinition, WorkflowDefinition, json_args
from harvest.errors import DefinitionError, PayloadError, UnknownHandlerError
from harvest.payload.caps import INPUT_CAP, SIGNAL_CAP
from harvest.payload.plain import check_finite


def workflow_call(workflow: Any, args: tuple[Any, ...]) -> tuple[str, msgspec.Raw, WorkflowDefinition | None]:
    """(type, input, definition). Raises `PayloadError` for arguments that do not fit."""
    definition = definition_of(workflow)
    if isinstance(definition, WorkflowDefinition):
        return definition.name, definition.signature.encode_args(args), definition
    if isinstance(workflow, str) and workflow:
        return workflow, _by_name(f"workflow {workflow!r}", args, INPUT_CAP), None
    raise DefinitionError(f"{workflow!r} is not a workflow", hint="pass a @workflow.defn function or class, or its name")


def handler_call(
    kind: str, target: Any, args: tuple[Any, ...], definition: WorkflowDefinition | EntityDefinition | None
) -> tuple[str, msgspec.Raw, HandlerDefinition | None]:
    """(name, input, handler) of a signal, query or update, typed where the handler is known."""
    name = target
    handler: HandlerDefinition | None = None
    if isinstance(definition, EntityDefinition):
        known: dict[str, HandlerDefinition] = definition.queries if kind == "query" else {}
        owner = "entity"
    else:
        known, owner = {} if definition is None else definition.handlers[kind], "workflow"
    if not isinstance(target, str):
        mark = getattr(target, MARK, None)
        if mark is None or mark[0] != kind:
            desk = "entity" if isinstance(definition, EntityDefinition) else "workflow"
            raise DefinitionError(
                f"{target!r} is not a {kind}",
                hint=f"decorate the method with @{desk}.{kind}, or pass its name",
            )
        name = mark[1]
        fn = getattr(target, "fn", target)
        handler = known.get(name)
        if handler is None or handler.fn is not fn:
            handler = HandlerDefinition(kind, name, fn, fn.__qualname__.rpartition(".")[0] or "?", {})
    elif definition is not None:
        handler = known.get(name)
        # A workflow without signal handlers may still `receive` signals by name.
        if handler is None and (kind != "signal" or known or owner == "entity"):
            raise UnknownHandlerError(kind, name, definition.name, list(known), owner=owner)
    if not name:
        raise PayloadError(kind, "its name is empty")
    if name.startswith("@"):
        raise PayloadError(kind, f"names that begin with '@' are Harvest's own, got {name!r}")
    if handler is not None:
        return name, handler.signature.encode_args(args), handler
    return name, _by_name(f"{kind} {name!r}", args, SIGNAL_CAP if kind == "signal" else INPUT_CAP), None


def _by_name(where: str, args: tuple[Any, ...], cap: int) -> msgspec.Raw:
    raw = json_args(where, args, cap)
    check_finite(where, args, bytes(raw))
    return raw
