"""The owner's disk cache: histories of runs that were read once, so that a memory miss reads the file and what is new.

Nothing is written while a run is in memory. A cold load writes what it read (from `min_events` on); the next one reads
that, and from the hub only what came since, beginning with the last cached decision: if the two are not the same, the
entry is dropped and the run is read whole (D-5).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from harvest.core.replay import StoredDecision
from harvest.diskcache import Cache, Scope
from harvest.hub import executions
from harvest.ids import is_entity
from harvest.service import Periodic

if TYPE_CHECKING:
    from harvest.decider.decider import Decider
    from harvest.decisions.run import Run
    from harvest.ownership.share import Share

HISTORY = "history"
RECONCILE = 30.0
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[StoredDecision])


class Shelf(Periodic):
    """Of one decider. `outcomes` counts reads by (workflow, hit|miss|stale|corrupt)."""

    doing = "reconcile the disk cache"

    def __init__(self, decider: Decider, share: Share, cache: Cache, *, min_events: int) -> None:
        super().__init__(RECONCILE)
        self.decider, self.share, self.cache, self.min_events = decider, share, cache, min_events
        self.outcomes: Counter[tuple[str, str]] = Counter()

    def scope(self, partition: int) -> Scope | None:
        epoch = self.share.epochs.get(partition)
        return None if epoch is None else Scope(f"{self.decider.pool}/{partition}", epoch)

    async def known(self, runs: Iterable[Run]) -> dict[UUID, list[StoredDecision]]:
        """What the file has of each run, whole up to some decision."""
        found: dict[UUID, list[StoredDecision]] = {}
        for run in runs:
            scope = self.scope(run.partition)
            if scope is None or not self.cache.knows(scope, run.execution_id.bytes, HISTORY):
                continue
            read = await self.cache.read(scope, run.execution_id.bytes, HISTORY)
            if read.outcome == "hit":
                try:
                    decisions = [each for chunk in read.chunks for each in _decoder.decode(chunk)]
                except msgspec.MsgspecError:
                    decisions = []
                if decisions and decisions[0].decision == 1:
                    found[run.execution_id] = decisions
                else:
                    await self.cache.purge(scope, run.execution_id.bytes)
            else:
                self.outcomes[self._type(run), read.outcome] += 1
        return found

    def loaded(self, run: Run, decisions: Sequence[StoredDecision], cached: int, *, fits: bool) -> None:
        """A cold load of a run: `cached` of its decisions came from the file, unless they did not fit the hub's."""
        if is_entity(run.workflow_id):
            return  # the state that an entity records keeps its history short
        if cached or not fits:
            self.outcomes[self._type(run), "hit" if fits else "stale"] += 1
        elif run.events >= self.min_events:
            self.outcomes[self._type(run), "miss"] += 1
        scope = self.scope(run.partition)
        new = decisions[cached:]
        if scope is None or not new or run.events < self.min_events:
            return
        self.decider.spawn(self._keep(scope, run, new))

    async def _keep(self, scope: Scope, run: Run, decisions: Sequence[StoredDecision]) -> None:
        if self.scope(run.partition) != scope:
            return  # the tenure ended meanwhile, and its file with it
        data, first, last = _encoder.encode(decisions), decisions[0].decision, decisions[-1].decision
        await self.cache.append(scope, run.execution_id.bytes, HISTORY, first, last, data, begins=first == 1)

    def forget(self, execution_id: UUID, partition: int) -> None:
        """The run is closed, evicted or erased."""
        scope = self.scope(partition)
        if scope is not None and not self.cache.closed:
            self.decider.spawn(self.cache.purge(scope, execution_id.bytes))

    def leave(self, partitions: Iterable[int]) -> None:
        """Tenures that are over take their files along."""
        names = [f"{self.decider.pool}/{partition}" for partition in partitions]
        if not self.cache.closed:
            self.decider.spawn(self.cache.end(names))

    def leave_all(self) -> None:
        prefix = f"{self.decider.pool}/"
        self.leave([int(s.name[len(prefix) :]) for s in self.cache.entries() if s.name.startswith(prefix)])

    async def run_once(self) -> int:
        """D-3: what is cached of runs that are closed by now goes, and so do files of an older key generation. Returns how
        many runs went."""
        await self.cache.expire()
        gone = 0
        for scope, entries in self.cache.entries().items():
            pool, _, _ = scope.name.rpartition("/")
            if pool != self.decider.pool:
                continue
            if self.share.epochs.get(int(scope.name[len(pool) + 1 :])) != scope.epoch:
                await self.cache.end([scope.name])
                continue
            if not entries:
                continue
            rows = await executions.load(self.decider.db, [UUID(bytes=entry) for entry in entries])
            for entry in entries:
                row = rows.get(UUID(bytes=entry))
                if row is None or row["state"] != "RUNNING":
                    await self.cache.purge(scope, entry)
                    gone += 1
        return gone

    def _type(self, run: Run) -> str:
        return "" if run.info is None else run.info.type
