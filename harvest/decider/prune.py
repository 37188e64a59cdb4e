"""What a cold load of an entity does not read any more leaves its history: the owner says so, beside its commits."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from harvest.hub import entities

if TYPE_CHECKING:
    from harvest.decider.decider import Decider

EVERY = 1.0
PUT_AWAY = 60.0
"""Seconds between looks for answers that nobody can ask for any more."""


class Pruner:
    """Bound to one decider. What is noted is deleted within a second or two, many entities in one statement; what is
    lost with the process stays, and goes with the next time the entity records its state."""

    def __init__(self, decider: Decider) -> None:
        self.decider = decider
        self._noted: dict[UUID, int] = {}
        self._waiting = False
        self._put_away_at = 0.0

    def note(self, execution_id: UUID, below: int) -> None:
        """Decisions before number `below` are not needed."""
        self._noted[execution_id] = below
        if not self._waiting and self.decider.loop is not None:
            self._waiting = True
            self.decider.loop.call_later(EVERY, self._start)

    def _start(self) -> None:
        self._waiting = False
        noted, self._noted = self._noted, {}
        decider = self.decider
        if decider.stopping.is_set() or not noted:
            return
        decider.spawn(entities.prune(decider.db, noted))
        now = decider.clock.monotonic()
        if now > self._put_away_at:
            self._put_away_at = now + PUT_AWAY
            decider.spawn(entities.put_away(decider.db))
