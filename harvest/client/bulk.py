"""`client.bulk(…)`: one act on all open runs that match."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, TypedDict

from harvest.client.calls import handler_call
from harvest.errors import ConfigError
from harvest.ids import check_name
from harvest.operations import message, pause
from harvest.operations.bulk import Target
from harvest.operations.site import Site, as_json
from harvest.operations.start import check_attributes

LEAST = 0.02
"""Seconds that a run gets of which nobody can wait any more: its request is stored all the same."""
VERBS = ("cancel", "terminate", "signal", "pause", "resume")


class BulkFilters(TypedDict, total=False):
    """Which open runs; at least one, or `everything=True`. `before` and `after` bound the time of creation."""

    state: str
    type: str
    queue: str
    prefix: str
    search_attributes: dict[str, Any]
    after: datetime
    before: datetime


def checked_filters(filters: BulkFilters, everything: bool) -> dict[str, Any]:
    """As the hub takes them. Raises `ConfigError`."""
    unknown = sorted(set(filters) - set(BulkFilters.__annotations__))
    if unknown:
        raise ConfigError(unknown[0], "not a filter", hint=f"known filters: {', '.join(sorted(BulkFilters.__annotations__))}")
    given: dict[str, Any] = {name: value for name, value in filters.items() if value is not None}
    if not given and not everything:
        raise ConfigError(
            "filters", "none given: this would act on every open run", hint="everything=True (--all) if you mean it"
        )
    state = given.get("state")
    if state not in (None, "RUNNING", "PAUSED"):
        raise ConfigError("state", f"must be RUNNING or PAUSED, got {state!r}: only open runs can be acted on")
    for name in ("type", "queue", "prefix"):
        if name in given:
            check_name(name, given[name], 1_000)
    for name in ("after", "before"):
        if name in given and not isinstance(given[name], datetime):
            raise ConfigError(name, f"must be a datetime, got {given[name]!r}")
    attributes = given.pop("search_attributes", None)
    if attributes is not None:
        if not isinstance(attributes, dict):
            raise ConfigError("search_attributes", f"must be a dict, got {attributes!r}")
        if not attributes:
            raise ConfigError("search_attributes", "is empty, and would match every run that has any", hint="name one at least")
        given["attributes"] = check_attributes(as_json("search_attributes", attributes))
    return given


def check_count(name: str, value: int | None, least: int) -> None:
    """Raises `ConfigError` for what is no whole number from `least`."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
        raise ConfigError(name, f"must be {least} or more, got {value!r}")


def act_of(
    site: Site, verb: str, *, signal: Any, args: tuple[Any, ...], reason: str, patience: float
) -> Callable[[Target], Awaitable[object]]:
    """What is done to each run, through its logical handle. Workers get `patience` seconds in all to carry it out."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + patience

    def left() -> float:
        return max(LEAST, deadline - clock())

    if verb not in VERBS:
        raise ConfigError("verb", f"must be one of {', '.join(VERBS)}, got {verb!r}")
    if (signal is not None) is not (verb == "signal"):
        raise ConfigError("signal", "goes with the verb signal, and only with it", hint="signal=NAME (--signal NAME)")
    if reason:
        check_name("reason", reason, 10_000)
    if verb == "signal":
        name, raw, _ = handler_call("signal", signal, args, None)
        return lambda t: message.signal(site, t.workflow_id, name, raw, None, t.execution_id)
    if verb == "cancel":
        return lambda t: message.cancel(site, t.workflow_id, reason, t.execution_id)
    if verb == "terminate":
        return lambda t: message.terminate(site, t.workflow_id, reason, attempt=t.execution_id, patience=left())
    if verb == "pause":
        return lambda t: pause.pause(site, t.workflow_id, t.execution_id, left())
    return lambda t: pause.resume(site, t.workflow_id, t.execution_id)
