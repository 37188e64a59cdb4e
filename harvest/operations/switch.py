"""Switch a hub between owner mode and the sticky claim loop (O-8)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from harvest.errors import HubBusy, OwnerModeRefused
from harvest.hub import settings, workers
from harvest.hub.database import explained
from harvest.hub.sqlstate import Trouble, trouble_of
from harvest.operations.site import Site
from harvest.ownership.assignment import difference
from harvest.wakes.topics import SWITCH, channel, dump

LOCK_TIMEOUT = 2.0
TRIES = 5


class Switched(NamedTuple):
    """`changed` is False when the hub was in this mode already."""

    mode: str
    changed: bool


def why_not(rows: Sequence[Any]) -> list[str]:
    """Reasons against owner mode, from the rows of the living workers. Pure."""
    reasons = []
    able: dict[str, list[Any]] = {}
    for row in rows:
        who = f"worker {row['worker_id']} ({row['host']}, pid {row['pid']}, queue {row['pool']!r}, build {row['build_id']})"
        if not row["pools"]:
            reasons.append(f"{who} runs a version of Harvest that knows no switch: replace it")
        elif row["can_own"]:
            for pool in row["pools"]:
                able.setdefault(pool, []).append(row)
        elif json.loads(row["definitions"]).get("workflows"):
            reasons.append(f"{who} runs workflows with owner mode off: set owner_mode=True (and workflow slots), or stop it")
    if not able:
        reasons.append("no live worker could own partitions: start one first")
    for pool, members in sorted(able.items()):
        first = members[0]
        for other in members[1:]:
            differs = difference(json.loads(first["definitions"]), json.loads(other["definitions"]))
            if differs:
                reasons.append(
                    f"workers of {pool!r} register different types: compared with {first['worker_id']}, "
                    f"{other['worker_id']} differs: {differs.replace('this worker', 'the first')}"
                )
    return reasons


async def enable_owner_mode(site: Site) -> Switched:
    """Gives each run one owner. Safe under load; decisions that were in flight are taken again by the owners.

    Raises `OwnerModeRefused` with every reason, `HubBusy` when the tables could not be locked.
    """
    if await settings.mode(site.db) == "owner":
        return Switched("owner", False)
    reasons = why_not(await workers.live(site.db))
    if reasons:
        raise OwnerModeRefused(reasons)
    return await _switch(site, "owner")


async def disable_owner_mode(site: Site) -> Switched:
    """Puts the hub on the claim loop, in one transaction. Raises `HubBusy`."""
    if await settings.mode(site.db) == "sticky":
        return Switched("sticky", False)
    return await _switch(site, "sticky")


async def _switch(site: Site, mode: str) -> Switched:
    for left in reversed(range(TRIES)):
        try:
            name = channel(site.db.schema, SWITCH)
            await settings.switch(site.db, mode, lock_timeout=LOCK_TIMEOUT, channel=name, payload=dump(mode))
            break
        except Exception as exc:
            trouble = trouble_of(exc)
            if trouble is not Trouble.CONFLICT:
                raise explained(exc, site.db.dsn) from exc
            if not left:
                raise HubBusy(
                    f"the tables could not be locked within {LOCK_TIMEOUT:g} s, {TRIES} times: {exc}",
                    hint="a long transaction writes to harvest.workflow_tasks; see pg_stat_activity, then try again",
                ) from exc
        await asyncio.sleep(0.1)
    site.in_mode(mode)
    return Switched(mode, True)
