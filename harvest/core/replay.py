"""History against code: feed the recorded decisions to an instance and see whether it asks for the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from harvest.core.events import Arrival, Command, decode_events
from harvest.core.instance import Instance
from harvest.core.program import Program, RunInfo


class StoredDecision(msgspec.Struct, gc=False):
    """One row of `decisions`: its number, the time the code saw (microseconds), its events as JSON and the number of
    the first of them."""

    decision: int
    at_us: int
    events: str
    first_event_id: int = 1


class History(msgspec.Struct, gc=False):
    """A run as `harvest run history --export` writes it: enough to replay it without a database."""

    info: RunInfo
    decisions: list[StoredDecision]


def replay_decision(instance: Instance, stored: StoredDecision) -> tuple[list[Arrival], list[Command]]:
    """Feeds one recorded decision; raises `NonDeterminismError` where the code asks for something else."""
    arrivals, commands = decode_events(stored.events)
    instance.activate(stored.at_us, arrivals, commands)
    return arrivals, commands


def replay(
    info: RunInfo,
    program: Program,
    decisions: Iterable[StoredDecision],
    check_activity: Callable[[str, str | None], None] | None = None,
) -> Instance:
    """A live instance rebuilt from history: the cold path."""
    instance = Instance(info, program, check_activity=check_activity)
    for stored in decisions:
        replay_decision(instance, stored)
    instance.replaying = False
    return instance


def encode_history(history: History) -> bytes:
    return msgspec.json.format(msgspec.json.encode(history), indent=1)


def decode_history(raw: bytes | str) -> History:
    return msgspec.json.decode(raw, type=History)
