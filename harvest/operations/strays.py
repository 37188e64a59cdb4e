"""Mail that reached a run just as it closed: it follows to the next run, or is answered and put away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from harvest.decisions.leftovers import put_away
from harvest.hub import executions, messages
from harvest.hub.executions import OPEN
from harvest.ids import partition_of

if TYPE_CHECKING:
    from harvest.operations.site import Site


async def forward_strays(site: Site, execution_ids: Sequence[UUID]) -> None:
    """Owners do this for the runs of their partitions; in sticky mode whoever notices it."""
    for execution_id, row in (await executions.load(site.db, execution_ids)).items():
        successor = row["successor"]
        if row["state"] in OPEN:
            continue
        if successor is None:
            await put_away(site.db, site.router, site.notifier, execution_id, row["workflow_id"], row["state"])
            continue
        await messages.settle(site.db, execution_id, successor)
        site.notifier.decide(row["pool"], successor, partition_of(row["workflow_id"]))
