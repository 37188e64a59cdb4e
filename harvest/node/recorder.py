"""What this worker counted in the last interval, kept on the hub for some hours: plots are there when somebody looks."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harvest.hub import figures
from harvest.service import Periodic
from harvest.telemetry.counts import Spread

if TYPE_CHECKING:
    from harvest.node.worker import Worker

log = logging.getLogger("harvest.worker")
EVERY = 10.0
"""Seconds of an interval."""
KEEP = 2 * 3600.0
"""Seconds for which they are kept."""
FORGET_EVERY = 30
"""Intervals between deletions."""


def total(spreads: Sequence[Spread]) -> list[int]:
    return [sum(column) for column in zip(*(spread.counts for spread in spreads), strict=True)]


def since(now: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """What was counted between two readings. Pure; numbers, lists of them, and dicts of either."""
    found: dict[str, Any] = {}
    for name, value in now.items():
        old = before.get(name)
        if isinstance(value, dict):
            grown = since(value, old or {})
            found[name] = {key: n for key, n in grown.items() if n}
        elif isinstance(value, list):
            found[name] = [n - o for n, o in zip(value, old or [0] * len(value), strict=True)]
        else:
            found[name] = value - (old or 0)
    return found


class Recorder(Periodic):
    """Writes one small row per interval; one worker of the hub also writes what the hub holds."""

    doing = "record figures"

    def __init__(self, worker: Worker, every: float = EVERY) -> None:
        super().__init__(every)
        self.worker = worker
        self._before: dict[str, Any] = {}
        self._at = 0.0
        self._turns = 0

    def reading(self) -> dict[str, Any]:
        """Everything since this process began."""
        units = list(self.worker.units.values())
        modes: Counter[str] = Counter()
        closed: Counter[str] = Counter()
        for unit in units:
            for (_, mode), count in list(unit.decider.outcomes.items()):
                modes[mode] += count
            closed.update(unit.decider.closed)
        lanes = [lane for unit in units for lane in unit.decider.lanes]
        return {
            "commits": sum(lane.commits for lane in lanes),
            "decisions": sum(lane.drafts for lane in lanes),
            "modes": dict(modes),
            "closed": dict(closed),
            "commit": total([lane.times for lane in lanes]),
            "wait": total([unit.decider.waits for unit in units]),
            "schedule_to_start": list(self.worker.activities.waits.counts),
            "failovers": self.worker.keeper.failovers,
        }

    async def _close(self) -> None:
        """What was counted since the last interval is not lost with a worker that stops."""
        try:
            async with asyncio.timeout(1.0):
                await self.run_once()
        except Exception as exc:
            log.debug("the last figures were not recorded: %s", exc)

    async def run_once(self) -> None:
        db, now, reading = self.worker.client.db, self.worker.clock.monotonic(), self.reading()
        seconds, counted = now - self._at, since(reading, self._before)
        if self._before:
            await figures.record(db, self.worker.keeper.worker_id, seconds, json.dumps(counted))
        self._before, self._at = reading, now  # only now: what could not be stored counts in the next interval
        await figures.survey(db, self.interval)
        self._turns += 1
        if self._turns % FORGET_EVERY == 0:
            await figures.forget(db, KEEP)
