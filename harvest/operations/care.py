"""Legal hold, erasure and triage of one execution. They are about the record, so nothing is routed to another attempt (L-4)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec

from harvest.errors import ConfigError, EraseRefused, PayloadErased, WorkflowNotFound
from harvest.hub import care
from harvest.hub.database import Row
from harvest.ids import new_id, partition_of
from harvest.operations.again import command
from harvest.operations.live import exactly
from harvest.operations.site import Site

STATUSES = ("open", "investigating", "resolved")
ERASED = "(erased)"
_KEPT = """type seq name workflow_id entity update_id attempt delay_us patch_id deprecated events version parent_close queue
    priority timeout decision execution_id signals options retry caller path key"""
KEPT = frozenset(_KEPT.split())
"""Fields of an event that say what happened, and hold nothing of what it was about."""


@dataclass(frozen=True, slots=True)
class Note:
    """`status`: open, investigating or resolved."""

    at: datetime
    author: str
    status: str
    note: str


async def hold(site: Site, workflow_id: str, execution_id: UUID | None, reason: str, author: str) -> UUID:
    """Keeps a run from being erased, until the hold is lifted."""
    row = await exactly(site, workflow_id, execution_id)
    if row["erased_at"] is not None:
        raise PayloadErased(f"the payloads of execution {row['execution_id']} were erased: there is nothing to hold")
    text = json.dumps({"reason": reason, "author": author, "at": datetime.now(UTC).isoformat()})
    await care.hold(site.db, row["execution_id"], text)
    found: UUID = row["execution_id"]
    return found


async def lift_hold(site: Site, workflow_id: str, execution_id: UUID | None) -> UUID:
    row = await exactly(site, workflow_id, execution_id)
    await care.hold(site.db, row["execution_id"], None)
    found: UUID = row["execution_id"]
    return found


async def triage(site: Site, workflow_id: str, execution_id: UUID | None, *, status: str, note: str, author: str) -> None:
    """Adds a post-mortem note."""
    if status not in STATUSES:
        raise ConfigError("status", f"must be one of {', '.join(STATUSES)}, got {status!r}")
    row = await exactly(site, workflow_id, execution_id)
    await care.note(site.db, row["execution_id"], note_id=new_id(), author=author, status=status, note=note)


async def notes(site: Site, workflow_id: str, execution_id: UUID | None) -> list[Note]:
    row = await exactly(site, workflow_id, execution_id)
    return [Note(**dict(note)) for note in await care.notes(site.db, row["execution_id"])]


async def erase(site: Site, workflow_id: str, execution_id: UUID | None) -> int:
    """Overwrites every payload of a closed run; the shape of its history stays. Returns how many decisions were rewritten.

    Raises `EraseRefused` for a run that is open or held.
    """
    row = await exactly(site, workflow_id, execution_id)
    found: UUID = row["execution_id"]
    count = await care.erase(site.db, found, check=lambda locked: _may_erase(workflow_id, found, locked), scrub=scrub)
    site.wake(row["pool"], found, partition_of(workflow_id), workflow_id)  # its owner's disk cache forgets it, too
    return count


def _may_erase(workflow_id: str, execution_id: UUID, row: Row | None) -> None:
    if row is None:
        raise WorkflowNotFound(f"no run has the execution id {execution_id}")
    if row["closed_at"] is None:
        hint = f"{command('run terminate', workflow_id)} ends it"
        raise EraseRefused(f"execution {execution_id} is {row['state']}: only a closed run can be erased", hint=hint)
    if row["legal_hold"] is not None:
        reason = json.loads(row["legal_hold"])["reason"]
        hint = command("run hold", workflow_id, "--execution-id", execution_id, "--lift")
        raise EraseRefused(f"execution {execution_id} is on legal hold: {reason}", hint=hint)


def scrub(events: str) -> str:
    """The events of a decision without payloads. Pure."""
    return msgspec.json.encode([_scrubbed(event) for event in msgspec.json.decode(events)]).decode()


def _scrubbed(event: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, value in event.items():
        if name in KEPT:
            kept[name] = value
        elif name == "failure" and value is not None:
            kept[name] = {"message": ERASED, "type": value.get("type", "Exception")}
        elif name == "waiting":
            kept[name] = [_scrubbed(call) for call in value]
        elif name == "state" and event["type"] == "OperationCompleted":
            kept[name] = {}
        else:
            kept[name] = ERASED
    return kept
