"""What an operator asks of one execution and does to it. Nothing here is routed to another attempt (L-4)."""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from uuid import UUID

import msgspec

from harvest.core.standing import Awaitable, TaskStack
from harvest.definitions.options import Span, seconds
from harvest.errors import ConfigError
from harvest.hub import diagnosis
from harvest.ids import check_name
from harvest.operations import activities, care
from harvest.operations import diagnose as diagnosing
from harvest.operations.care import Note
from harvest.operations.diagnose import Diagnosis
from harvest.operations.live import exactly
from harvest.operations.query import query
from harvest.operations.site import Site
from harvest.operations.timeline import Span as Stretch
from harvest.operations.timeline import timeline

NOTE_CAP = 10_000
_NOTHING = msgspec.Raw(b"[]")


def somebody(author: str | None) -> str:
    """Who did it: as said, else who runs this process."""
    if author is None:
        try:
            return getpass.getuser()
        except (KeyError, OSError):
            return "unknown"
    return check_name("author", author, 200)


class Operated:
    """The part of a handle that is about one execution: the one it was made for, else the newest of its workflow id."""

    _site: Site
    id: str
    execution_id: UUID | None

    # --- where it stands

    async def diagnose(self) -> Diagnosis:
        """Why it is not moving: one sentence, and the command that mends it."""
        return await diagnosing.diagnose(self._site, self.id, self.execution_id)

    async def stack(self, *, timeout: Span = 10.0) -> list[TaskStack]:
        """Where its coroutines stand; empty for a closed run. Raises `QueryFailed`, `QueryTimeout`."""
        return msgspec.json.decode(await self._inspect("@stack", timeout), type=list[TaskStack])

    async def awaitables(self, *, timeout: Span = 10.0) -> list[Awaitable]:
        """What it can be woken by; empty for a closed run. Raises `QueryFailed`, `QueryTimeout`."""
        return msgspec.json.decode(await self._inspect("@awaitables", timeout), type=list[Awaitable])

    async def _inspect(self, what: str, timeout: Span) -> msgspec.Raw:
        patience = seconds("timeout", timeout) or 10.0
        row = await exactly(self._site, self.id, self.execution_id)
        return await query(self._site, self.id, row["execution_id"], what, _NOTHING, patience)

    async def timeline(self) -> Sequence[Stretch]:
        """Its history as spans: activities, timers, children, signals and decisions, each with beginning and end."""
        row = await exactly(self._site, self.id, self.execution_id)
        decisions = await diagnosis.timed_decisions(self._site.db, row["execution_id"])
        return timeline(row["type"], row["created_at"], decisions)

    # --- its activities

    async def retry_activity(self, seq: int) -> None:
        """Tries a waiting activity now, whatever its back-off. Raises `ActivityNotFound`."""
        await activities.retry_now(self._site, self.id, self.execution_id, _seq(seq))

    async def fail_activity(self, seq: int, reason: str = "") -> None:
        """Ends an activity as failed (`FailedByOperator`, not retried). Raises `ActivityNotFound`."""
        text = check_name("reason", reason, NOTE_CAP) if reason else ""
        await activities.fail_now(self._site, self.id, self.execution_id, _seq(seq), text)

    # --- its record

    async def hold(self, reason: str, *, author: str | None = None) -> None:
        """Keeps it from being erased until `lift_hold`."""
        await care.hold(self._site, self.id, self.execution_id, check_name("reason", reason, NOTE_CAP), somebody(author))

    async def lift_hold(self) -> None:
        await care.lift_hold(self._site, self.id, self.execution_id)

    async def erase(self) -> int:
        """Overwrites every payload of a closed run, for good, and returns how many decisions were rewritten.

        Types, names, times and error types stay; the workflow id, too. Raises `EraseRefused` for an open or held run.
        """
        return await care.erase(self._site, self.id, self.execution_id)

    async def triage(self, note: str, *, status: str = "investigating", author: str | None = None) -> None:
        """Adds a post-mortem note; `status` is open, investigating or resolved."""
        text = check_name("note", note, NOTE_CAP)
        await care.triage(self._site, self.id, self.execution_id, status=status, note=text, author=somebody(author))

    async def triage_notes(self) -> Sequence[Note]:
        """The notes, oldest first."""
        return await care.notes(self._site, self.id, self.execution_id)


def _seq(seq: int) -> int:
    if isinstance(seq, bool) or not isinstance(seq, int) or not 0 < seq < 2**31:
        raise ConfigError(
            "seq", f"must be the number of an activity, got {seq!r}", hint="handle.describe().activities has them"
        )
    return seq
