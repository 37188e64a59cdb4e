"""One act on many runs: found by filters, looked at in a dry run first, then done a few at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from harvest.errors import HarvestError, NoAnswer
from harvest.hub import diagnosis, executions
from harvest.operations.site import Site

log = logging.getLogger("harvest.operations")
SAMPLE = 10
PAGE = 500


@dataclass(frozen=True, slots=True)
class Target:
    workflow_id: str
    execution_id: UUID
    type: str
    state: str


@dataclass(frozen=True, slots=True)
class Failed:
    workflow_id: str
    execution_id: UUID
    error: str


@dataclass(slots=True)
class BulkReport:
    """`matched` open runs that were there `before` (the hub's time), of which `done` were acted on; of a dry run none is.

    `stored`: the request is durable, and no worker has carried it out yet. `sample` shows the first of them.
    """

    verb: str
    dry_run: bool
    matched: int = 0
    done: int = 0
    stored: int = 0
    before: datetime | None = None
    sample: list[Target] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)

    def add(self, other: BulkReport) -> None:
        """The same act on another shard."""
        self.matched, self.done, self.stored = (
            self.matched + other.matched,
            self.done + other.done,
            self.stored + other.stored,
        )
        self.before = min((each for each in (self.before, other.before) if each is not None), default=None)
        self.sample = (self.sample + other.sample)[:SAMPLE]
        self.failed += other.failed


async def matching(site: Site, limit: int | None, before: datetime, filters: dict[str, Any]) -> AsyncIterator[Target]:
    """Open runs, newest first; what is started meanwhile is left out."""
    cursor, left = None, limit
    while left is None or left > 0:
        size = PAGE if left is None else min(PAGE, left)
        rows = await executions.listing(site.db, size=size, cursor=cursor, before=before, open=True, **filters)
        for row in rows:
            yield Target(row["workflow_id"], row["execution_id"], row["type"], row["state"])
        if len(rows) < size:
            return
        cursor, left = (rows[-1]["created_at"], rows[-1]["execution_id"]), None if left is None else left - len(rows)


async def run(
    site: Site,
    verb: str,
    act: Callable[[Target], Awaitable[object]],
    filters: dict[str, Any],
    *,
    dry_run: bool,
    limit: int | None = None,
    parallel: int = 16,
    progress: Callable[[BulkReport], None] = lambda _: None,
) -> BulkReport:
    """`act` on every run that matches; one that fails is named in the report and stops nobody."""
    before = filters.pop("before", None) or (await diagnosis.read(site.db, "now"))[0]["now"]
    report = BulkReport(verb, dry_run, before=before)
    found = [target async for target in matching(site, limit, before, filters)]
    report.matched, report.sample = len(found), found[:SAMPLE]
    progress(report)
    if dry_run:
        return report
    queue = iter(found)

    async def work() -> None:
        for target in queue:
            try:
                await act(target)
                report.done += 1
            except NoAnswer:
                report.stored += 1
            except HarvestError as exc:
                report.failed.append(Failed(target.workflow_id, target.execution_id, exc.message))
            except Exception as exc:  # what was done so far has to be told
                log.exception("a bulk act on %s failed", target.workflow_id)
                report.failed.append(Failed(target.workflow_id, target.execution_id, type(exc).__name__))
            progress(report)

    async with asyncio.TaskGroup() as group:
        for _ in range(parallel):
            group.create_task(work())
    return report
