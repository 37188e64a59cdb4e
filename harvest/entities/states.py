"""The last committed state of one entity, from wherever it is cheapest (E-4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

import msgspec

from harvest.clock import at_us
from harvest.core.entity import SNAPSHOT, Recorded, recorded_in
from harvest.decider.decider import Decider
from harvest.decider.shelf import Shelf
from harvest.decisions.answers import Undelivered
from harvest.definitions.registry import Registry
from harvest.diskcache import Scope
from harvest.errors import QueryFailed, UnknownWorkflowError, WorkflowNotFound
from harvest.hub import entities, history
from harvest.hub.database import Database
from harvest.ids import entity_id, partition_of

STATE = "state"
_recorded = msgspec.msgpack.Decoder(tuple[int, Recorded])


class Snapshot(NamedTuple):
    """`data` is JSON; `source` is resident, disk or history."""

    execution_id: UUID
    data: bytes
    event_id: int
    updated_at: str
    source: str


class States:
    def __init__(self, db: Database, registry: Registry, deciders: Sequence[Decider]) -> None:
        self.db, self.registry, self.deciders = db, registry, deciders

    async def find(self, type: str, key: str) -> Snapshot | None:
        """None where there is no such entity. Raises `UnknownWorkflowError` for a type that is not registered here."""
        if type not in self.registry.entities:
            raise UnknownWorkflowError(type, self.registry.where, list(self.registry.entities))
        workflow_id = entity_id(type, key)
        for decider in self.deciders:
            found = await self._resident(decider, workflow_id)
            if found is not None:
                return found
        head = await entities.head(self.db, workflow_id)
        if head is None or not head["decision"]:
            return None
        return await self._stored(type, workflow_id, head["execution_id"], head["decision"], head["pool"])

    async def _resident(self, decider: Decider, workflow_id: str) -> Snapshot | None:
        execution_id = decider.open_ids.get(workflow_id)
        run = None if execution_id is None else decider.runs.get(execution_id)
        if run is None or run.instance is None or execution_id is None or run.launch is not None:
            return None
        try:  # through the decider, so that what is not durable yet is not seen
            raw = await decider.ask(execution_id, run.partition, SNAPSHOT, msgspec.Raw(b"[]"))
        except (Undelivered, WorkflowNotFound, QueryFailed):
            return None
        return _snapshot(execution_id, msgspec.msgpack.decode(raw, type=Recorded), "resident")

    async def _stored(self, type: str, workflow_id: str, execution_id: UUID, decision: int, pool: str) -> Snapshot:
        """From the file when it is of this very decision, else from history; then the file is written anew."""
        shelf = next((d.shelf for d in self.deciders if d.pool == pool and d.owns(workflow_id)), None)
        scope = None if shelf is None else shelf.scope(partition_of(workflow_id))
        if shelf is not None and scope is not None:
            cached = await self._cached(shelf, scope, type, execution_id, decision)
            if cached is not None:
                return _snapshot(execution_id, cached, "disk")
        rows = (await history.load(self.db, [execution_id]))[execution_id]
        found = recorded_in(self.registry.entities[type], rows)
        if shelf is not None and scope is not None and rows and not shelf.cache.closed:
            data = msgspec.msgpack.encode((rows[-1].decision, found))
            await shelf.cache.purge(scope, execution_id.bytes, STATE)
            await shelf.cache.append(scope, execution_id.bytes, STATE, 1, 1, data)
        return _snapshot(execution_id, found, "history")

    async def _cached(self, shelf: Shelf, scope: Scope, type: str, execution_id: UUID, decision: int) -> Recorded | None:
        if not shelf.cache.knows(scope, execution_id.bytes, STATE):
            return None
        found = await shelf.cache.read(scope, execution_id.bytes, STATE)
        outcome = found.outcome
        if found.outcome == "hit":
            at, recorded = _recorded.decode(found.chunks[0])
            if at == decision:
                shelf.outcomes[type, "hit"] += 1
                return recorded
            outcome = "stale"
        shelf.outcomes[type, outcome] += 1
        return None


def _snapshot(execution_id: UUID, found: Recorded, source: str) -> Snapshot:
    return Snapshot(execution_id, found.data, found.event_id, at_us(found.updated_us).isoformat(), source)
