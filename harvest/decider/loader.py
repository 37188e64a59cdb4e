"""Getting runs ready to decide: their row, their history, their mail. Few queries for many runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from harvest.backoff import Backoff
from harvest.clock import MICRO
from harvest.core.replay import StoredDecision
from harvest.core.standing import INSPECTIONS, inspect
from harvest.decider.effects import refuse, resolve
from harvest.decider.pauses import knocked, pausing
from harvest.decisions.decide import ENDING, HALTING, begins_later
from harvest.decisions.leftovers import put_away
from harvest.decisions.load import Loaded, describe_run, load, rebuild
from harvest.decisions.run import Delivery, Run
from harvest.errors import QueryFailed, UnknownActivityError, WorkflowNotFound
from harvest.hub import messages
from harvest.ids import queue_of
from harvest.ownership.watchdog import LoopStuck

if TYPE_CHECKING:
    from harvest.decider.decider import Decider

log = logging.getLogger("harvest.decider")

LOAD_AT_ONCE = 64


class Loader:
    """Bound to one decider. `waiting` are the runs that have to be read before they can be driven."""

    def __init__(self, decider: Decider) -> None:
        self.decider = decider
        self.waiting: dict[UUID, Run] = {}
        self.busy = False

    def start(self) -> None:
        """Reads on the side what waits, unless it is being read already."""
        if self.waiting and not self.busy:
            self.busy = True
            self.decider.spawn(self.load())

    def ready(self, run: Run) -> str | None:
        """The replay mode when the run can be driven; None when it is being loaded, or is closed."""
        loaded: Loaded | None = run.loaded
        if loaded is not None:
            run.loaded = None
            if loaded.error is not None and not run.dead:
                raise loaded.error
            if not self.absorb(run, loaded):
                return None
            if run.instance is None and pausing(run) and not ending(run):
                return "engine"  # it need not be rebuilt in order to stand still
        elif run.mail or not run.known:
            self.needs_load(run)
            return None
        if run.instance is not None:
            self._count(run, hit=True)
            return "warm"
        if run.dead:
            return self._dead(run)
        now_us = self.decider.clock.now_us()
        if begins_later(run, now_us):
            if (run.stored[1] or 0) > now_us + MICRO:  # else it begins before they give up: the hub's clock is a bit ahead
                refuse_questions(run, QueryFailed("the run has not begun yet: its start is delayed"))
            self.decider.timers.arm(run.stored[1] or 0, run.execution_id, run.partition)
            return None
        decisions = [] if loaded is None else loaded.decisions
        if run.decision and not decisions:
            run.known = False
            self.needs_load(run)
            return None
        return self._replay(run, decisions, loaded)

    def _replay(self, run: Run, decisions: list[StoredDecision], loaded: Loaded | None) -> str | None:
        try:
            left = rebuild(run, decisions, self.decider.registry, self.check_activity)
        except Exception:
            if ending(run):
                return "engine"  # its end asks no code, not even code that is known here
            if loaded is None or not loaded.cached or self.decider.shelf is None:
                raise
            self.decider.shelf.forget(run.execution_id, run.partition)  # the hub's own word counts
            run.known = False
            self.needs_load(run)
            return None
        if run.decision == 0:
            return "first"
        self._count(run, hit=False)
        for command in left.local:
            self.decider.effects.start_activity(run, command)
        for request in left.external:
            self.decider.spawn(self.decider.effects.repost(run, request))
        if run.claim is not None and run.claim.replay_mode != "cold_replay":
            return "forced"  # W-3
        return "disk" if loaded is not None and loaded.cached else "cold"

    def urgent(self, run: Run) -> bool:
        """True when a run whose last decision failed need not wait for its next try: its end was asked for, or a pause."""
        if ending(run) or pausing(run):
            return True
        if run.loaded is not None:
            return any(isinstance(d.arrival, HALTING) for d in run.loaded.deliveries)
        if run.mail and not run.loading:
            self.needs_load(run)
        return False

    def _dead(self, run: Run) -> str | None:
        refuse_questions(run, QueryFailed("the run is parked: its decisions fail; see `harvest run show`"))
        if ending(run):
            return "engine"
        self.decider.strikes.park(run)
        return None

    def _count(self, run: Run, *, hit: bool) -> None:
        residents, minute = self.decider.residents, self.decider.minute
        if hit:
            residents.hits += 1
        else:
            residents.misses += 1
        if run.claim is None:
            return
        minute.add("hit" if hit else "miss")
        if not hit and run.claim.replay_mode != "cold_replay":  # W-3
            residents.forced += 1
            minute.add("forced_cold_replay")

    def only_ask(self, run: Run) -> None:
        """A run that may not be decided here. Closed ones answer questions all the same, from their history."""
        loaded: Loaded | None = run.loaded
        if run.questions and loaded is None and not run.known:
            self.needs_load(run)
            return
        run.loaded = None
        if self.decider.holdings.by_claim and run.instance is not None and not run.questions:
            return  # it parked while its mail was read; the wake of that mail makes it due again
        if loaded is not None and loaded.row is not None and loaded.row["state"] != "RUNNING":
            self._not_running(run, loaded.row, loaded)
            return
        self.decider.let_go(run)

    def absorb(self, run: Run, loaded: Loaded) -> bool:
        """Takes in what was read; False when the run is closed (its mail is put away or forwarded)."""
        row = loaded.row
        if row is not None:
            if row["state"] != "RUNNING" and not (row["state"] == "PAUSED" and ends(loaded.deliveries)):
                self._not_running(run, row, loaded)
                return False
            describe_run(run, row, loaded.decisions)
            if self.decider.shelf is not None:
                self.decider.shelf.loaded(run, loaded.decisions, loaded.cached, fits=loaded.fits)
            self.decider.open_ids[run.workflow_id] = run.execution_id
        elif not run.known and not loaded.cold:
            run.mail = True  # it was evicted while its mail was read
            self.needs_load(run)
            return False
        elif not run.known:
            self.decider.unclaim(run)
            self.decider.refuse_all(run)
            self.decider.runs.pop(run.execution_id, None)
            return False
        if run.claim is not None and loaded.wakes is not None:
            run.claim.wakes = loaded.wakes
        for delivery in loaded.deliveries:
            run.offer(delivery)
        return True

    def needs_load(self, run: Run) -> None:
        if run.dead:
            run.known = False  # its row tells whether it was redriven
        run.loading = True
        self.waiting[run.execution_id] = run

    def _not_running(self, run: Run, row: Any, loaded: Loaded) -> None:
        if row["state"] == "PAUSED":
            knocked(self.decider, run, row, loaded)
        else:
            self.closed_elsewhere(run, row, loaded)

    def answer_from_history(self, run: Run, row: Any, loaded: Loaded) -> None:
        """Questions about a run that nobody decides."""
        if not run.questions:
            return
        try:
            if row["erased_at"] is not None:
                raise QueryFailed(f"the payloads of this run were erased at {row['erased_at']:%Y-%m-%d %H:%M} UTC")
            describe_run(run, row, loaded.decisions)
            rebuild(run, loaded.decisions, self.decider.registry, None)
            self.decider.answer(run)
        except (Exception, LoopStuck) as exc:
            refuse_questions(run, QueryFailed(str(exc)) if isinstance(exc, LoopStuck) else exc)
        run.drop_instance()

    def closed_elsewhere(self, run: Run, row: Any, loaded: Loaded) -> None:
        if self.decider.shelf is not None:
            self.decider.shelf.forget(run.execution_id, run.partition)
        self.answer_from_history(run, row, loaded)
        if loaded.deliveries:
            successor = row["successor"]
            if successor is not None:
                self.decider.spawn(self.forward(run, successor))
            else:
                decider = self.decider
                work = put_away(
                    decider.db, decider.router, decider.notifier, run.execution_id, row["workflow_id"], row["state"]
                )
                decider.spawn(work)
        self.decider.unclaim(run)
        self.decider.refuse_all(run)
        self.decider.runs.pop(run.execution_id, None)

    async def forward(self, run: Run, successor: UUID) -> None:
        await messages.settle(self.decider.db, run.execution_id, successor)
        self.decider.notifier.decide(self.decider.pool, successor, run.partition)
        self.decider.wake(successor, run.partition)

    def check_activity(self, name: str, queue: str | None) -> None:
        if (queue is None or queue == queue_of(self.decider.pool)) and name not in self.decider.registry.activities:
            raise UnknownActivityError(name, queue or queue_of(self.decider.pool), list(self.decider.registry.activities))

    async def load(self) -> None:
        """Reads what the waiting runs need: a few queries for up to 64 of them at once."""
        backoff, tries = Backoff(0.1, cap=2.0), 0
        try:
            while self.waiting and not self.decider.stopping.is_set():
                chosen = list(self.waiting.values())[:LOAD_AT_ONCE]
                for run in chosen:
                    del self.waiting[run.execution_id]
                marks = {run.execution_id: run.decision for run in chosen}
                cold = [run.execution_id for run in chosen if not run.known]
                claimed = [run.execution_id for run in chosen if run.claim is not None and not run.claim.fresh]
                for run in chosen:
                    run.mail, run.loading = False, True
                    if run.claim is not None:
                        run.claim.fresh = False
                try:
                    everyone = [run.execution_id for run in chosen]
                    shelf = self.decider.shelf
                    known = {} if shelf is None else await shelf.known(run for run in chosen if not run.known)
                    found = await load(self.decider.db, cold, everyone, claimed=claimed, known=known)
                    tries = 0
                except Exception as exc:
                    tries += 1
                    if tries == 1:
                        log.warning("cannot load %d runs, will try again: %s", len(chosen), exc)
                    for run in chosen:
                        run.mail = True
                        self.needs_load(run)
                    await asyncio.sleep(backoff.delay(tries))
                    continue
                for run in chosen:
                    # Woken meanwhile, it waits again already: mail is on its way that must not be overtaken.
                    run.loading = run.execution_id in self.waiting
                    if self.decider.runs.get(run.execution_id) is not run:
                        continue
                    if run.busy or run.decision != marks[run.execution_id]:
                        run.mail = True  # it moved meanwhile: what was read may be ingested already
                    else:
                        run.loaded = found[run.execution_id]
                    self.decider.enqueue(run)
        finally:
            self.busy = False


def ends(deliveries: Iterable[Delivery]) -> bool:
    return any(isinstance(d.arrival, ENDING) for d in deliveries)


def ending(run: Run) -> bool:
    """True when something waits that ends the run without asking its code."""
    return ends(run.queue)


def refuse_questions(run: Run, error: Exception) -> None:
    for question in run.questions:
        refuse(question.answer, error)
    run.questions.clear()


def answer(run: Run) -> None:
    for question in run.questions:
        if run.instance is None or question.answer.done():
            refuse(question.answer, QueryFailed("the run cannot be replayed"))
            continue
        try:
            if run.instance.main is None:
                raise WorkflowNotFound(f"workflow {run.workflow_id!r} has not begun yet")
            if question.name in INSPECTIONS:
                resolve(question.answer, inspect(run.instance, question.name))
            else:
                resolve(question.answer, run.instance.query(question.name, question.input))
        except Exception as exc:
            refuse(question.answer, exc)
        except BaseException as exc:
            refuse(question.answer, QueryFailed(f"query {question.name!r} raised {type(exc).__name__}"))
    run.questions.clear()
