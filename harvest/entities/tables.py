"""All live entities of a type that this worker owns, as one table: built when it is first asked for, then kept current
by what is committed here, and forgotten partition by partition as ownership moves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from harvest.clock import at_us
from harvest.core.entity import EntityInstance, Recorded, recorded_in
from harvest.decider.decider import Decider
from harvest.decisions.run import Run
from harvest.definitions.entity import EntityDefinition
from harvest.entity_sql import Document, Limits, Result, Table
from harvest.entity_sql.pool import bounds_of
from harvest.errors import EntitySqlOff
from harvest.hub import entities, history
from harvest.ids import key_of

AT_ONCE = 64
TOO_LARGE_FOR = 60.0
"""Seconds until a table that was over its bound is tried again."""
Place = tuple[str, int]


class Freshness(NamedTuple):
    """How far the answer of one partition goes: `event_id` is the highest of its entities."""

    pool: str
    partition: int
    epoch: int
    event_id: int
    entities: int


class Moved(Exception):
    """Ownership changed between two steps of an answer: it has to be begun again."""


class Seen(NamedTuple):
    """An entity in the table: which run, how far, and its document."""

    execution_id: UUID
    event_id: int
    document: Document


class TypeTable:
    """The table of one type over the pools of a worker.

    `keys` are the entities of each partition that is followed; those of a partition that is still being read are kept aside, so
    that an answer has all of a partition or nothing of it. `epochs` are the partitions that are whole, `broken` those that
    cannot be read, with the reason.
    """

    def __init__(self, definition: EntityDefinition, deciders: Sequence[Decider], *, max_bytes: int, limits: Limits) -> None:
        self.definition, self.deciders = definition, deciders
        self.max_bytes, self.limits = max_bytes, limits
        self.table = Table(definition.name, indexes=definition.indexes, max_bytes=max_bytes, limits=limits)
        self.keys: dict[Place, dict[str, Seen]] = {}
        self.epochs: dict[Place, int] = {}
        self.broken: dict[Place, str] = {}
        self._gone: set[UUID] = set()
        self._building = asyncio.Lock()
        self._aside = 0
        self._too_large: tuple[float, int] | None = None

    # --- kept current

    def changed(self, pool: str, run: Run, instance: EntityInstance) -> None:
        """An operation of this entity was committed."""
        place = (pool, run.partition)
        if place in self.keys:
            found = Recorded(instance.data, run.events, instance.updated_us)
            self._put(place, key_of(run.workflow_id), run.execution_id, found)

    def gone(self, pool: str, run: Run) -> None:
        place = (pool, run.partition)
        if place in self.keys:
            self._gone.add(run.execution_id)
            key = key_of(run.workflow_id)
            self.keys[place].pop(key, None)
            if place in self.epochs:
                self.table.drop(key)

    def _put(self, place: Place, key: str, execution_id: UUID, found: Recorded) -> None:
        known = self.keys[place].get(key)
        if known is not None and known[:2] > (execution_id, found.event_id):
            return
        document = Document(self.definition.name, key, found.data, found.event_id, at_us(found.updated_us).isoformat())
        self.keys[place][key] = Seen(execution_id, found.event_id, document)
        if place in self.epochs:
            self.table.put(document)
        else:
            self._aside += len(found.data)

    # --- built

    async def complete(self) -> None:
        """Reads the partitions that came to this worker since the last time, and forgets those that left it."""
        async with self._building:
            self._check_size()
            self.forget_moved()
            self.broken.clear()
            for decider in self.deciders:
                missing = [p for p in self._owned(decider) if (decider.pool, p) not in self.epochs]
                if missing:
                    await self._read(decider, missing)
            self._gone.clear()
            self._check_size()

    def _check_size(self) -> None:
        """Over its bound a table keeps nothing, and is tried again after a while."""
        now = self.deciders[0].clock.monotonic()
        if self._too_large is None and self.table.bytes + self._aside > self.max_bytes:
            self._too_large = (now + TOO_LARGE_FOR, self.table.bytes + self._aside)
            for place in list(self.keys):
                self._forget(place)
        if self._too_large is not None:
            until, size = self._too_large
            if now < until:
                raise EntitySqlOff(
                    f"its {self.definition.name} entities take over {size:,} bytes, the most is {self.max_bytes:,}",
                    hint="raise entity_table_bytes, or spread them over more workers",
                )
            self._too_large = None

    def forget_moved(self) -> None:
        for place in [place for place, epoch in self.epochs.items() if self._epoch(*place) != epoch]:
            self._forget(place)

    def _owned(self, decider: Decider) -> dict[int, int]:
        return dict(getattr(decider.holdings, "epochs", {}))

    def _epoch(self, pool: str, partition: int) -> int | None:
        for decider in self.deciders:
            if decider.pool == pool:
                return self._owned(decider).get(partition)
        return None

    def _forget(self, place: Place) -> None:
        whole = self.epochs.pop(place, None) is not None
        for key in self.keys.pop(place, {}):
            if whole:
                self.table.drop(key)

    async def _read(self, decider: Decider, partitions: list[int]) -> None:
        epochs, places = self._owned(decider), {p: (decider.pool, p) for p in partitions}
        self._aside = 0
        for place in places.values():  # from now on what is committed is taken in
            self._forget(place)
            self.keys[place] = {}
        rows = await entities.of_partitions(decider.db, decider.pool, partitions, [self.definition.name])
        for start in range(0, len(rows), AT_ONCE):
            some = rows[start : start + AT_ONCE]
            read = await history.load(decider.db, [row["execution_id"] for row in some])
            for row in some:
                self._take(places[row["partition"]], row["key"], row["execution_id"], read[row["execution_id"]])
            self._check_size()
            await asyncio.sleep(0)  # between two batches others have their turn
        for partition, place in places.items():
            if place in self.broken or partition not in epochs:
                self._forget(place)
            elif place in self.keys:
                self.epochs[place] = epochs[partition]
                for seen in self.keys[place].values():
                    self.table.put(seen.document)
        self._aside = 0

    def _take(self, place: Place, key: str, execution_id: UUID, decisions: list[Any]) -> None:
        if place not in self.keys or not decisions or execution_id in self._gone:
            return
        try:
            found = recorded_in(self.definition, decisions)
        except Exception as exc:
            self.broken[place] = f"the state of {self.definition.name} {key!r} cannot be read: {exc}"
            return
        self._put(place, key, execution_id, found)

    # --- asked

    async def ask(self, sql: str, params: Any) -> tuple[Result, list[Freshness]]:
        """Rows, and how far they go: both of one moment. Raises `Moved` where ownership changed meanwhile."""
        fresh: list[Freshness] = []

        def when_fed() -> None:
            if any(self._epoch(*place) != epoch for place, epoch in self.epochs.items()):
                raise Moved
            fresh.extend(self._freshness())

        bounds = bounds_of(self.limits, 0)
        result = await self.table.ask(sql, params, bounds, before=self.forget_moved, when_fed=when_fed)
        return result, fresh

    def _freshness(self) -> list[Freshness]:
        return [
            Freshness(pool, partition, epoch, max((seen.event_id for seen in keys.values()), default=0), len(keys))
            for (pool, partition), epoch in self.epochs.items()
            for keys in [self.keys[pool, partition]]
        ]

    def has(self, place: Place, key: str, execution_id: UUID, event_id: int) -> bool:
        """True when the table is at least as new as this: the entity has come that far, is gone, or is another one by now."""
        if place not in self.epochs:
            return False
        seen = self.keys[place].get(key)
        return seen is None or seen[:2] >= (execution_id, event_id) or seen.execution_id > execution_id
