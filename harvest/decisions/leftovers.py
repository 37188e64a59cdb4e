"""Mail that reached a run just as it closed for good: whoever waits for an answer gets one."""

from __future__ import annotations

from uuid import UUID

from harvest.core.entity import gone
from harvest.decisions.rows import reply_failure, unfinished
from harvest.failure import encode_failure
from harvest.hub import messages
from harvest.hub.database import Database
from harvest.ids import is_entity
from harvest.wakes.notifier import Notifier
from harvest.wakes.router import Router
from harvest.wakes.topics import REPLY, reply_key


async def put_away(db: Database, router: Router, notifier: Notifier, execution_id: UUID, workflow_id: str, state: str) -> None:
    """Nothing of it was begun, so a call to an entity may be made again: it is told that the entity is gone."""
    failure = gone() if is_entity(workflow_id) else unfinished(state)
    for row in await messages.drop_unread(db, [execution_id], reply_failure(failure), encode_failure(failure)):
        if row["kind"] in ("update", "pause"):
            router.wake(REPLY, reply_key(workflow_id, row["key"]))
            notifier.reply(workflow_id, row["key"])
        elif row["kind"] == "operation":
            notifier.decide(row["pool"], row["execution_id"], row["partition"])
