"""Tasks that ran out of time, whoever held them: tried again or failed for good."""

from __future__ import annotations

import random
from collections.abc import Callable
from uuid import UUID

import msgspec

from harvest.core.events import DEFAULT_OPTIONS, ActivityOptions
from harvest.definitions.retry import next_try
from harvest.errors import ActivityTimeout
from harvest.failure import Failure, encode_failure, failure_of
from harvest.hub import activity_tasks
from harvest.hub.activity_tasks import Again, Finished
from harvest.hub.database import Database, Row
from harvest.service import Periodic


def verdict(row: Row) -> tuple[Failure, float | None]:
    """Why the task is overdue, and after how long to try again (None: it failed for good). Pure."""
    options: ActivityOptions = DEFAULT_OPTIONS
    if row["options"] is not None:
        options = msgspec.json.decode(row["options"], type=ActivityOptions)
    if row["closed"]:
        kind, bound = "schedule_to_close", options.schedule_to_close
    elif row["state"] == "pending":
        kind, bound = "schedule_to_start", options.schedule_to_start
    elif options.heartbeat is not None and (options.start_to_close is None or options.heartbeat < options.start_to_close):
        kind, bound = "heartbeat", options.heartbeat
    else:
        kind, bound = "start_to_close", options.start_to_close
    text = f"activity {row['name']!r} passed its {kind} time-out of {bound or 0:g} s"
    failure = failure_of(ActivityTimeout(kind, text))
    if kind in ("schedule_to_close", "schedule_to_start"):
        return failure, None
    return failure, next_try(options.retry, row["attempt"], failure)


MOST_SHARERS = 10


class Sweeper(Periodic):
    """`wake(execution_id, partition, pool)` tells the owner of a run that a final failure waits; `sharers()` is how many
    workers sweep the hub."""

    doing = "sweep overdue activities"

    def __init__(
        self,
        db: Database,
        wake: Callable[[UUID, int, str], None],
        wake_queue: Callable[[str], None],
        *,
        interval: float,
        sharers: Callable[[], int] = lambda: 1,
    ) -> None:
        super().__init__(interval)
        self.db, self.wake, self.wake_queue = db, wake, wake_queue
        self.every, self.sharers = interval, sharers

    async def run_once(self) -> int:
        """One sweep; returns how many tasks were overdue or lost."""
        # Everybody sweeps the whole hub, so a fleet shares it: one sweep per interval is enough.
        self.interval = self.every * min(MOST_SHARERS, self.sharers()) * random.uniform(0.8, 1.2)
        lost = await activity_tasks.release_lost(self.db)
        for queue in set(lost):
            self.wake_queue(queue)
        again: list[Again] = []
        over: list[Finished] = []
        for row in await activity_tasks.expired(self.db):
            failure, delay = verdict(row)
            text = encode_failure(failure)
            if delay is None:
                over.append(Finished(row["execution_id"], row["seq"], row["attempt"], None, text))
            else:
                again.append(Again(row["execution_id"], row["seq"], row["attempt"], delay, text))
        if again:
            await activity_tasks.retry(self.db, again, None)
        if over:
            for row in await activity_tasks.expire(self.db, over):
                self.wake(row["execution_id"], row["partition"], row["pool"])
        return len(again) + len(over) + len(lost)
