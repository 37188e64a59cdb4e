"""The set of definitions one worker, replayer or test knows."""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any

from harvest.definitions.activity import ActivityDefinition
from harvest.definitions.workflow import DEFINITION, WorkflowDefinition
from harvest.errors import DefinitionError, UnknownActivityError, UnknownWorkflowError


def definition_of(item: Any) -> WorkflowDefinition | ActivityDefinition | None:
    """The definition behind a decorated function or class, or None."""
    if isinstance(item, (WorkflowDefinition, ActivityDefinition)):
        return item
    found = item.__dict__.get(DEFINITION) if hasattr(item, "__dict__") else None
    return found if isinstance(found, (WorkflowDefinition, ActivityDefinition)) else None


class Registry:
    """Built from decorated objects, or from modules (all their definitions)."""

    def __init__(self, definitions: Iterable[Any], *, where: str = "this worker") -> None:
        self.where = where
        self.workflows: dict[str, WorkflowDefinition] = {}
        self.activities: dict[str, ActivityDefinition] = {}
        for item in definitions:
            if isinstance(item, types.ModuleType):
                found = [d for d in map(definition_of, list(vars(item).values())) if d is not None]
                if not found:
                    raise DefinitionError(
                        f"module {item.__name__!r} defines no workflow and no activity",
                        hint="decorate functions with @workflow.defn or @activity.defn",
                    )
                for each in found:
                    self._add(each)
            else:
                definition = definition_of(item)
                if definition is None:
                    raise DefinitionError(
                        f"{item!r} is neither a workflow nor an activity",
                        hint="decorate it with @workflow.defn or @activity.defn",
                    )
                self._add(definition)

    def _add(self, definition: WorkflowDefinition | ActivityDefinition) -> None:
        table: dict[str, Any] = self.workflows if isinstance(definition, WorkflowDefinition) else self.activities
        known = table.get(definition.name)
        if known is definition:
            return
        if known is not None:
            raise DefinitionError(
                f"two different definitions are named {definition.name!r}: {known!r} and {definition!r}",
                hint="give one of them another name: @workflow.defn(name=...) or @activity.defn(name=...)",
            )
        if isinstance(definition, WorkflowDefinition):
            definition.prepare()
        else:
            definition.signature.prepare()
        table[definition.name] = definition

    def workflow(self, name: str) -> WorkflowDefinition:
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
        return {"workflows": sorted(self.workflows), "activities": sorted(self.activities)}
