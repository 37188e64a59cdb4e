"""The set of definitions one worker, replayer or test knows."""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any

from harvest.definitions.activity import ActivityDefinition
from harvest.definitions.entity import EntityDefinition
from harvest.definitions.workflow import DEFINITION, WorkflowDefinition
from harvest.errors import DefinitionError, UnknownActivityError, UnknownWorkflowError

Definition = WorkflowDefinition | EntityDefinition | ActivityDefinition


def definition_of(item: Any) -> Definition | None:
    """The definition behind a decorated function or class, or None."""
    if isinstance(item, Definition):
        return item
    found = item.__dict__.get(DEFINITION) if hasattr(item, "__dict__") else None
    return found if isinstance(found, Definition) else None


class Registry:
    """Built from decorated objects, or from modules (all their definitions)."""

    def __init__(self, definitions: Iterable[Any], *, where: str = "this worker") -> None:
        self.where = where
        self.workflows: dict[str, WorkflowDefinition | EntityDefinition] = {}
        self.activities: dict[str, ActivityDefinition] = {}
        for item in definitions:
            if isinstance(item, types.ModuleType):
                found = [d for d in map(definition_of, list(vars(item).values())) if d is not None]
                if not found:
                    raise DefinitionError(
                        f"module {item.__name__!r} defines no workflow, entity or activity",
                        hint="decorate with @workflow.defn, @entity.defn or @activity.defn",
                    )
                for each in found:
                    self._add(each)
            else:
                definition = definition_of(item)
                if definition is None:
                    raise DefinitionError(
                        f"{item!r} is neither a workflow nor an entity nor an activity",
                        hint="decorate it with @workflow.defn, @entity.defn or @activity.defn",
                    )
                self._add(definition)

    def _add(self, definition: Definition) -> None:
        table: dict[str, Any] = self.activities if isinstance(definition, ActivityDefinition) else self.workflows
        known = table.get(definition.name)
        if known is definition:
            return
        if known is not None:
            raise DefinitionError(
                f"two different definitions are named {definition.name!r}:"
                f" {known!r} of {_home(known)} and {definition!r} of {_home(definition)}",
                hint="give one of them another name: @workflow.defn(name=...) or @activity.defn(name=...)",
            )
        if isinstance(definition, ActivityDefinition):
            definition.signature.prepare()
        else:
            definition.prepare()
        table[definition.name] = definition

    @property
    def entities(self) -> dict[str, EntityDefinition]:
        return {name: d for name, d in self.workflows.items() if isinstance(d, EntityDefinition)}

    def workflow(self, name: str) -> WorkflowDefinition | EntityDefinition:
        definition = self.workflows.get(name)
        if definition is None:
            raise UnknownWorkflowError(name, self.where, list(self.workflows))
        return definition

    def activity(self, name: str, queue: str) -> ActivityDefinition:
        definition = self.activities.get(name)
        if definition is None:
            raise UnknownActivityError(name, queue, list(self.activities))
        return definition

    def names(self) -> dict[str, list[str]]:
        """`workflows` are all types of runs, entities among them."""
        return {
            "workflows": sorted(self.workflows),
            "entities": sorted(self.entities),
            "activities": sorted(self.activities),
        }


def _home(definition: Definition) -> str:
    """The module that a definition was written in."""
    for name in ("fn", "cls", "_run"):
        written = getattr(definition, name, None)
        if written is not None:
            return str(written.__module__)
    return "?"
