"""Mail for runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from harvest.hub.database import Database, Row, Runs
from harvest.hub.queries import queries

_Q = queries("messages")


class Mail(NamedTuple):
    """`event` is the arrival as JSON; `key` de-duplicates per (run, kind)."""

    message_id: UUID
    workflow_id: str
    kind: str
    name: str | None
    key: str | None
    event: str


async def send(db: Runs, mail: Sequence[Mail], *, once: bool = False) -> dict[UUID, Row]:
    """`once` leaves it to the caller what to do when the connection breaks.

    By message id: execution_id, pool, partition, stored. An id that is missing found no open run.

    `stored` is false where the key was known, and on a second try of the same message.
    """
    fetch = db.fetch_once if isinstance(db, Database) and once else db.fetch
    rows = await fetch(
        _Q["send"],
        message_ids=[m.message_id for m in mail],
        workflow_ids=[m.workflow_id for m in mail],
        kinds=[m.kind for m in mail],
        names=[m.name for m in mail],
        keys=[m.key for m in mail],
        events=[m.event for m in mail],
    )
    return {row["message_id"]: row for row in rows}


async def send_to(db: Runs, mail: Mail, execution_id: UUID) -> Row | None:
    """Stores mail for one execution, which cannot close meanwhile; as `send` answers, None when it is closed."""
    rows = await db.fetch(
        _Q["send_to"],
        execution_id=execution_id,
        message_id=mail.message_id,
        kind=mail.kind,
        name=mail.name,
        key=mail.key,
        event=mail.event,
    )
    return rows[0] if rows else None


async def discard(db: Runs, message_id: UUID) -> None:
    """Takes a request out of the mailbox."""
    await db.fetch(_Q["discard"], message_id=message_id)


async def stored(db: Runs, message_ids: Sequence[UUID]) -> dict[UUID, Row]:
    """Those that are in the mailbox, as `send` would answer."""
    return {row["message_id"]: row for row in await db.fetch(_Q["stored"], message_ids=list(message_ids))}


async def load(db: Runs, execution_ids: Sequence[UUID]) -> Sequence[Row]:
    """Unread mail in order: message_id, execution_id, kind, key, event."""
    return await db.fetch(_Q["load"], execution_ids=list(execution_ids))


async def forward(db: Runs, execution_id: UUID, successor: UUID) -> None:
    """Unread mail of a closed run follows to the next one."""
    await db.fetch(_Q["forward"], execution_id=execution_id, successor=successor)


async def settle(db: Runs, execution_id: UUID, successor: UUID) -> None:
    """`forward`, and what cannot follow is put away."""
    await forward(db, execution_id, successor)
    await db.fetch(_Q["drop_stranded"], execution_id=execution_id, successor=successor)


async def drop_unread(db: Runs, execution_ids: Sequence[UUID], reply: str, failure: str) -> Sequence[Row]:
    """Puts away mail of closed runs, answers updates with `reply` and tells runs that called an operation of `failure`.

    Returns kind and key of each; of an operation execution_id, pool and partition of the run that was told.
    """
    return await db.fetch(_Q["drop_unread"], execution_ids=list(execution_ids), reply=reply, failure=failure)


async def by_key(db: Runs, *, workflow_id: str, kind: str, key: str) -> Row | None:
    """The mail with this key, of the newest run that has it."""
    rows = await db.fetch(_Q["by_key"], workflow_id=workflow_id, kind=kind, key=key)
    return rows[0] if rows else None


async def by_key_of_run(db: Runs, execution_id: UUID, *, kind: str, key: str, most: int = 10_000) -> Row | None:
    """The mail with this key in the logical run of an execution, which is followed over `most` runs."""
    rows = await db.fetch(_Q["by_key_of_run"], execution_id=execution_id, kind=kind, key=key, most=most)
    return rows[0] if rows else None


async def replies(db: Runs, message_ids: Sequence[UUID]) -> dict[UUID, str]:
    """The answers (JSON texts) that are there, by message id."""
    return {row["message_id"]: row["reply"] for row in await db.fetch(_Q["replies"], message_ids=list(message_ids))}
