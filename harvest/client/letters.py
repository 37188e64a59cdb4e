"""`client.dead_letters`: runs that nobody can decide, and those that ended at the cap of history."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from harvest.client.bulk import check_count
from harvest.definitions.options import Span, seconds
from harvest.errors import WorkflowNotFound
from harvest.ids import as_uuid, check_name
from harvest.operations import dead_letters
from harvest.operations.dead_letters import Cause, DeadLetter
from harvest.operations.site import Site


class DeadLetters:
    """Over one hub, or over several (`sites` of the shards that are up)."""

    def __init__(self, sites: Sequence[Site]) -> None:
        self._sites = sites

    async def list(
        self,
        *,
        type: str | None = None,
        queue: str | None = None,
        error: str | None = None,
        workflow_id: str | None = None,
        cursor: tuple[datetime, UUID] | None = None,
        limit: int | None = None,
        page: int = 200,
    ) -> AsyncIterator[DeadLetter]:
        """Newest first within each hub. `error` is the type of the error; `cursor` is (at, execution_id) of the last one."""
        check_count("page", page, 1)
        check_count("limit", limit, 0)
        for name, value in (("type", type), ("queue", queue), ("error", error), ("workflow_id", workflow_id)):
            if value is not None:
                check_name(name, value, 1_000)
        left = limit
        for site in self._sites:
            reached = cursor
            while left is None or left > 0:
                size = page if left is None else min(page, left)
                found = await dead_letters.listing(
                    site, size=size, cursor=reached, type=type, queue=queue, error=error, workflow_id=workflow_id
                )
                for letter in found:
                    yield letter
                left = None if left is None else left - len(found)
                if len(found) < size:
                    break
                reached = (found[-1].at, found[-1].execution_id)

    async def causes(self, *, type: str | None = None, queue: str | None = None) -> Sequence[Cause]:
        """What they died of, the most frequent first."""
        merged: dict[tuple[str, str, str], Cause] = {}
        for site in self._sites:
            for cause in await dead_letters.causes(site, type=type, queue=queue):
                key = (cause.type, cause.error, cause.message)
                known = merged.get(key)
                merged[key] = cause if known is None else _sum(known, cause)
        return sorted(merged.values(), key=lambda c: -c.count)

    async def show(self, execution_id: UUID | str) -> DeadLetter:
        """Raises `WorkflowNotFound`."""
        execution_id = as_uuid("execution_id", execution_id)
        return await dead_letters.show(await self._home(execution_id), execution_id)

    async def redrive(self, execution_id: UUID | str) -> None:
        """Has a parked run decided again. Raises `WorkflowNotFound`, `NotRedrivable`."""
        execution_id = as_uuid("execution_id", execution_id)
        await dead_letters.redrive(await self._home(execution_id), execution_id)

    async def discard(self, execution_id: UUID | str, reason: str = "", *, timeout: Span = 10.0) -> None:
        """Puts a letter away and terminates its run if it is open. Raises `WorkflowNotFound`, `NoAnswer`."""
        execution_id = as_uuid("execution_id", execution_id)
        site = await self._home(execution_id)
        await dead_letters.discard(site, execution_id, reason, seconds("timeout", timeout) or 10.0)

    async def _home(self, execution_id: UUID) -> Site:
        for site in self._sites[:-1]:
            try:
                await dead_letters.show(site, execution_id)
                return site
            except WorkflowNotFound:
                continue
        return self._sites[-1]


def _sum(one: Cause, other: Cause) -> Cause:
    return replace(
        one,
        count=one.count + other.count,
        oldest=min(one.oldest, other.oldest),
        newest=max(one.newest, other.newest),
    )
