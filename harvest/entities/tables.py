"""All live entities of a type that this worker owns, as one table: built when it is first asked for, then kept current
by what is committed here, and forgotten partition by partition as ownership moves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from harvest.clock import at_us
from harvest.core.entity import EntityInstance, recorded_in
from harvest.decider.decider import Decider
from harvest.decisions.run import Run
from harvest.definitions.entity import EntityDefinition
from harvest.entity_sql import Document, Limits, Table
from harvest.hub import entities, history
from harvest.ids import key_of

AT_ONCE = 64


class Freshness(NamedTuple):
    """How far the answer of one partition goes: `event_id` is the highest of its entities."""

    pool: str
    partition: int
    epoch: int
    event_id: int
    entities: int


class TypeTable:
    """The table of one type over the pools of a worker."""

    def __init__(self, definition: EntityDefinition, deciders: Sequence[Decider], *, max_bytes: int, limits: Limits) -> None:
        self.definition, self.deciders = definition, deciders
        self.table = Table(definition.name, indexes=definition.indexes, max_bytes=max_bytes, limits=limits)
        self.keys: dict[tuple[str, int], dict[str, int]] = {}
        """Of each partition that is followed: key → event id."""
        self.epochs: dict[tuple[str, int], int] = {}
        """Partitions that are complete, and the epoch they were read in."""
        self._gone: set[UUID] = set()
        self._building = asyncio.Lock()

    # --- kept current

    def changed(self, pool: str, run: Run, instance: EntityInstance) -> None:
        """An operation of this entity was committed."""
        keys = self.keys.get((pool, run.partition))
        if keys is not None:
            self._put(keys, run.workflow_id, instance.data, run.events, instance.updated_us)

    def gone(self, pool: str, run: Run) -> None:
        keys = self.keys.get((pool, run.partition))
        if keys is not None:
            self._gone.add(run.execution_id)
            key = key_of(run.workflow_id)
            keys.pop(key, None)
            self.table.drop(key)

    def _put(self, keys: dict[str, int], workflow_id: str, data: bytes, event_id: int, updated_us: int) -> None:
        key = key_of(workflow_id)
        if keys.get(key, -1) > event_id:
            return
        keys[key] = event_id
        self.table.put(Document(self.definition.name, key, data, event_id, at_us(updated_us).isoformat()))

    # --- built

    async def complete(self) -> None:
        """Reads the partitions that came to this worker since the last time, and forgets those that left it."""
        async with self._building:
            for place in [place for place, epoch in self.epochs.items() if self._epoch(*place) != epoch]:
                self._forget(place)
            for decider in self.deciders:
                missing = [p for p in self._owned(decider) if (decider.pool, p) not in self.epochs]
                if missing:
                    await self._read(decider, missing)
            self._gone.clear()

    def _owned(self, decider: Decider) -> dict[int, int]:
        return dict(getattr(decider.holdings, "epochs", {}))

    def _epoch(self, pool: str, partition: int) -> int | None:
        for decider in self.deciders:
            if decider.pool == pool:
                return self._owned(decider).get(partition)
        return None

    def _forget(self, place: tuple[str, int]) -> None:
        self.epochs.pop(place, None)
        for key in self.keys.pop(place, {}):
            self.table.drop(key)

    async def _read(self, decider: Decider, partitions: list[int]) -> None:
        epochs = self._owned(decider)
        for partition in partitions:  # from now on what is committed is taken in
            self._forget((decider.pool, partition))
            self.keys[decider.pool, partition] = {}
        rows = await entities.of_partitions(decider.db, decider.pool, partitions, [self.definition.name])
        for start in range(0, len(rows), AT_ONCE):
            some = rows[start : start + AT_ONCE]
            read = await history.load(decider.db, [row["execution_id"] for row in some])
            for row in some:
                decisions = read[row["execution_id"]]
                keys = self.keys.get((decider.pool, row["partition"]))
                if keys is None or not decisions or row["execution_id"] in self._gone:
                    continue
                found = recorded_in(self.definition, decisions)
                self._put(keys, f":{row['key']}", found.data, found.event_id, found.updated_us)
            await asyncio.sleep(0)  # between two batches others have their turn
        for partition in partitions:
            if partition in epochs and (decider.pool, partition) in self.keys:
                self.epochs[decider.pool, partition] = epochs[partition]

    # --- asked

    def freshness(self) -> list[Freshness]:
        return [
            Freshness(
                pool, partition, epoch, max(self.keys[pool, partition].values(), default=0), len(self.keys[pool, partition])
            )
            for (pool, partition), epoch in self.epochs.items()
        ]

    def has(self, pool: str, partition: int, key: str, event_id: int) -> bool:
        """True when the table is at least as new as this: the entity is gone, or has come that far."""
        keys = self.keys.get((pool, partition))
        return keys is not None and keys.get(key, event_id) >= event_id
