"""What becomes of a decision that failed: tried again with back-off, and parked after three strikes (F-4, R-3)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from harvest.backoff import Backoff
from harvest.clock import MICRO
from harvest.decider.effects import refuse
from harvest.decider.loader import refuse_questions
from harvest.decisions.answers import Undelivered
from harvest.decisions.run import Claim, Run
from harvest.errors import QueryFailed, UnknownWorkflowError
from harvest.failure import encode_failure, failure_of
from harvest.hub import workflow_tasks
from harvest.hub.workflow_tasks import STRIKES
from harvest.ownership.watchdog import LoopStuck

if TYPE_CHECKING:
    from harvest.decider.decider import Decider

log = logging.getLogger("harvest.decider")
UNKNOWN_TYPE = 10.0
"""Seconds until an owner tries again a run whose type it does not know; a new owner tries at once."""


class Strikes:
    """Bound to one decider."""

    def __init__(self, decider: Decider) -> None:
        self.decider = decider
        self._told: set[str] = set()

    def failed(self, run: Run, exc: Exception | LoopStuck) -> None:
        """The instance goes, the run stays open and is tried again; after three strikes it is parked in the dead letters
        until a new worker comes."""
        decider = self.decider
        if decider.tracing is not None:
            decider.tracing.failed(run, exc)
        decider.residents.take(run)
        if run.launch is not None:
            decider.launches.abandon(run)
            return
        run.drop_instance()
        run.known, run.loaded = False, None
        run.seen.clear()
        unknown = isinstance(exc, UnknownWorkflowError)
        run.strikes += (
            0 if unknown else 1
        )  # a worker that knows the type may be on its way (a deploy), or elsewhere in the pool
        name = run.info.type if run.info is not None else "?"
        decider.outcomes[name, "blocked"] += 1
        if not unknown:
            log.error("decision of %s %s failed (strike %d): %s", name, run.workflow_id, run.strikes, exc, exc_info=exc)
        elif name not in self._told:
            self._told.add(name)
            log.warning("%s %s, and others of its type, wait for a worker that knows it: %s", name, run.workflow_id, exc)
        refuse_questions(run, QueryFailed(f"the run cannot be replayed: {exc}"))
        for delivery in run.queue:
            refuse(delivery.ack, Undelivered(f"the decision failed: {exc}"))
        # Mail is read again; results of activities of this process exist nowhere else.
        kept = [d for d in run.queue if d.message is None and d.ack is None]
        run.queue.clear()
        run.queue.extend(kept)
        run.updates = {name: ack for name, ack in run.updates.items() if not ack.done()}
        run.dead, run.failing = run.strikes >= STRIKES, True
        delay = None if run.dead else Backoff(1.0, cap=30.0).delay(max(1, run.strikes))
        if unknown and run.claim is None:
            delay = UNKNOWN_TYPE
        if delay is not None:
            run.blocked_until = decider.clock.now_us() + round(delay * MICRO)
            decider.timers.arm(run.blocked_until, run.execution_id, run.partition)
        self._note(run, encode_failure(failure_of(exc)), delay)

    def park(self, run: Run) -> None:
        """A dead run was claimed, and nothing ends it: it goes back to where it was."""
        if run.claim is not None:
            self._note(run, None, None)

    def _note(self, run: Run, error: str | None, delay: float | None) -> None:
        claim = run.claim
        self.decider.spawn(self._strike(run, error, delay, claim))
        if claim is not None:
            self.decider.unclaim(run)
            run.mail = False
            if not run.queue:
                self.decider.let_go(run)

    async def _strike(self, run: Run, error: str | None, delay: float | None, claim: Claim | None) -> None:
        db, strikes = self.decider.db, run.strikes
        struck = await workflow_tasks.strike(
            db,
            run.execution_id,
            worker_id=self.decider.worker_id,
            claim=None if claim is None else claim.number,
            strikes=strikes,
            error=error,
            delay=delay,
        )
        if struck and error is not None and delay is None and run.info is not None:
            await workflow_tasks.bury(
                db,
                run.execution_id,
                workflow_id=run.workflow_id,
                type=run.info.type,
                pool=self.decider.pool,
                strikes=strikes,
                error=error,
            )
