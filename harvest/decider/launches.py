"""Runs whose start and first decision are one commit."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from harvest.clock import MICRO
from harvest.decider.effects import refuse
from harvest.decisions.answers import Answer, Undelivered
from harvest.decisions.decide import Draft
from harvest.decisions.load import retry_of
from harvest.decisions.run import Run
from harvest.failure import failure_of
from harvest.hub.executions import NewRun

if TYPE_CHECKING:
    from harvest.decider.decider import Decider


class Launches:
    """Bound to one decider."""

    def __init__(self, decider: Decider) -> None:
        self.decider = decider

    def begin(self, new: NewRun) -> asyncio.Future[None] | None:
        """None where the run has to be stored first. The future resolves once it is durable, or fails with
        `Undelivered`: nothing is stored then."""
        decider = self.decider
        if not decider.owns(new.workflow_id) or new.workflow_id in decider.open_ids or decider.stopping.is_set():
            return None
        deadline = None if new.timeout is None else decider.clock.now_us() + round(new.timeout * MICRO)
        decider.begin(new.execution_id, new.info(), priority=new.priority, deadline_us=deadline)
        run = decider.runs[new.execution_id]
        run.launch = new
        run.retry = retry_of(new.retry)
        run.launch_ack = asyncio.get_running_loop().create_future()
        return run.launch_ack

    def taken(self, draft: Draft) -> None:
        """A launch found its workflow id taken: nothing of it is stored, and its caller goes the long way."""
        self.decider.unreserve(draft)
        draft.run.busy = False
        self.abandon(draft.run)

    def abandon(self, run: Run) -> None:
        decider = self.decider
        refuse(run.launch_ack, Undelivered("the run was not stored"))
        decider.refuse_all(run)
        decider.unlist(run)
        run.drop_instance()

    def came_to_nothing(self, draft: Draft) -> bool:
        """All that was asked of a new entity was refused: it does not come about."""
        if draft.launch is None or not draft.rejected or len(draft.rejected) < len(draft.deliveries):
            return False
        for delivery, reason in draft.rejected:
            refuse(delivery.ack, Answer(failure_of(reason), rejected=True))
        self.abandon(draft.run)
        return True
