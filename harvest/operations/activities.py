"""What an operator does to one activity task of one execution (L-4): try it now, or give it up."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from harvest.errors import ActivityNotFound
from harvest.failure import Failure, encode_failure
from harvest.hub import activity_tasks
from harvest.operations.live import exactly
from harvest.operations.site import Site

GIVEN_UP = "FailedByOperator"


async def retry_now(site: Site, workflow_id: str, execution_id: UUID | None, seq: int) -> None:
    """A task that waits for its next try is due at once. Raises `ActivityNotFound` where none waits."""
    row = await exactly(site, workflow_id, execution_id)
    queue = await activity_tasks.retry_now(site.db, row["execution_id"], seq)
    if queue is None:
        raise _not_there(row, seq, "waits for a try")
    site.notifier.queue(queue)


async def fail_now(site: Site, workflow_id: str, execution_id: UUID | None, seq: int, reason: str) -> None:
    """A task ends as failed, whoever runs it; no retry follows. Raises `ActivityNotFound`."""
    row = await exactly(site, workflow_id, execution_id)
    failure = Failure(reason or "given up by an operator", GIVEN_UP, non_retryable=True)
    ended = await activity_tasks.fail_now(site.db, row["execution_id"], seq, encode_failure(failure))
    if ended is None:
        raise _not_there(row, seq, "is under way")
    site.wake(ended["pool"], row["execution_id"], ended["partition"], workflow_id)


def _not_there(row: Any, seq: int, what: str) -> ActivityNotFound:
    if row["state"] == "PAUSED":
        what += " while the run is paused"
    known = ", ".join(f"{a['seq']} ({a['name']}, {a['state']})" for a in activity_tasks.of_description(row)) or "none"
    return ActivityNotFound(
        f"no activity {seq} of execution {row['execution_id']} {what}",
        hint=f"its tasks: {known}; local activities have none",
    )
