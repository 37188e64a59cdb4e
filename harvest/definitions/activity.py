"""An activity as registered: a function, its signature, its options."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from harvest.core.events import ActivityOptions
from harvest.definitions.signature import Signature
from harvest.errors import DefinitionError


class ActivityDefinition:
    """`transactional` activities take the connection as their first argument; it is not part of the payload."""

    def __init__(
        self, fn: Callable[..., Any], name: str, options: ActivityOptions, *, transactional: bool, localns: dict[str, Any]
    ) -> None:
        if not callable(fn) or inspect.isclass(fn):
            raise DefinitionError(f"activity.defn: expected a function, got {fn!r}")
        if inspect.isasyncgenfunction(fn) or inspect.isgeneratorfunction(fn):
            raise DefinitionError(f"activity {name!r}: a generator cannot be an activity")
        self.fn, self.name, self.options, self.transactional = fn, name, options, transactional
        self.is_async = inspect.iscoroutinefunction(fn)
        if transactional and not self.is_async:
            raise DefinitionError(f"activity {name!r}: transactional activities must be async")
        if transactional and options.mode == "local":
            raise DefinitionError(f"activity {name!r}: transactional and local exclude each other (a local step has no row)")
        self.signature = Signature(fn, f"activity {name!r}", skip=1 if transactional else 0, localns=localns)

    def __repr__(self) -> str:
        return f"<activity {self.name}>"
