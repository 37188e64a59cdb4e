"""Which suspended runs stay in memory: a least-recently-used set, bounded by entries and by bytes (S-4)."""

from __future__ import annotations

from collections import OrderedDict
from uuid import UUID

from harvest.decisions.run import Run


class Residents:
    """Runs here are suspended and committed. `take` removes; only a committed suspension puts back.

    A run larger than the whole byte budget is not kept. `forced` counts cold decisions of runs that were pinned (W-3).
    """

    def __init__(self, entries: int, max_bytes: int) -> None:
        self.entries, self.max_bytes = entries, max_bytes
        self.bytes = 0
        self.hits = self.misses = self.forced = self.evictions = 0
        self._runs: OrderedDict[UUID, tuple[Run, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._runs)

    def take(self, run: Run) -> bool:
        """True when it was here."""
        found = self._runs.pop(run.execution_id, None)
        if found is None:
            return False
        self.bytes -= found[1]
        return True

    def put(self, run: Run) -> list[Run]:
        """Keeps a run; returns those that have to leave for it."""
        self.take(run)
        size = run.size()
        self._runs[run.execution_id] = (run, size)
        self.bytes += size
        gone = []
        while self._runs and (len(self._runs) > self.entries or self.bytes > self.max_bytes):
            _, (oldest, freed) = self._runs.popitem(last=False)
            self.bytes -= freed
            self.evictions += 1
            gone.append(oldest)
        return gone

    def clear(self) -> list[Run]:
        gone = [run for run, _ in self._runs.values()]
        self._runs.clear()
        self.bytes = 0
        return gone
