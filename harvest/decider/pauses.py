"""Runs that stand still: the end of a pausing commit, and what to do when somebody knocks (a paused run ingests nothing)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harvest.core.events import PauseRequested
from harvest.decisions.decide import Draft
from harvest.decisions.load import Loaded
from harvest.decisions.run import Run
from harvest.hub import workflow_tasks
from harvest.hub.commit import Committed

if TYPE_CHECKING:
    from harvest.decider.decider import Decider


def pausing(run: Run) -> bool:
    """True when a request to pause waits."""
    return any(isinstance(d.arrival, PauseRequested) for d in run.queue)


def landed(decider: Decider, draft: Draft, committed: Committed) -> None:
    """It leaves memory, unless the pause was taken back before: then its row is read again, and it goes on."""
    run = draft.run
    for seq in run.hot:
        decider.hands.cancel(run.execution_id, seq)  # its result could not be kept; the step runs again
    if run.execution_id not in committed.paused:
        run.drop_instance()
        run.known, run.mail = False, True
        run.seen.clear()
        decider.enqueue(run)
        return
    decider.effects.paused(run, draft.number)
    for delivery in draft.deliveries:
        if isinstance(delivery.arrival, PauseRequested):
            decider.effects.replied(run, delivery.arrival.key)
    if decider.shelf is not None:
        decider.shelf.forget(run.execution_id, run.partition)
    decider.unclaim(run)
    decider.let_go(run)


def knocked(decider: Decider, run: Run, row: Any, loaded: Loaded) -> None:
    """It stands still, and stays where it is; questions are answered from its history."""
    claim = run.claim
    if claim is not None:
        decider.spawn(workflow_tasks.still_paused(decider.db, run.execution_id, claim.number))
    decider.loader.answer_from_history(run, row, loaded)
    decider.unclaim(run)
    decider.let_go(run)
