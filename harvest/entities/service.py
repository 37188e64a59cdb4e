"""The sandbox and the tables of one worker. Questions come from clients in this process, or from others through the hub."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from harvest.core.entity import EntityInstance
from harvest.decider.decider import Decider
from harvest.decisions.run import Run
from harvest.definitions.registry import Registry
from harvest.entities.states import States
from harvest.entities.tables import Moved, TypeTable
from harvest.entity_sql import Document, Limits, Pool, by_name
from harvest.errors import EntityNotFound, EntitySqlOff, UnknownWorkflowError
from harvest.hub.database import Database
from harvest.ids import partition_of
from harvest.service import Service

LOOK_AGAIN = 0.02


class EntitySql(Service):
    """`one` and `part` answer with plain values that can travel."""

    def __init__(
        self, db: Database, registry: Registry, deciders: Sequence[Decider], *, table_bytes: int, limits: Limits | None = None
    ) -> None:
        super().__init__()
        self.registry, self.deciders, self.table_bytes = registry, list(deciders), table_bytes
        self.limits = limits or Limits()
        self.states = States(db, registry, deciders)
        self.pool = Pool(self.limits)
        self.tables: dict[str, TypeTable] = {}

    async def _open(self) -> None:
        for decider in self.deciders:
            decider.on_gone = self._gone_in(decider)

    async def _close(self) -> None:
        for decider in self.deciders:
            decider.on_state = None
            decider.on_gone = lambda _: None
        await self.pool.close()
        for table in self.tables.values():
            await table.table.close()

    def _gone_in(self, decider: Decider) -> Any:
        def gone(run: Run) -> None:
            table = None if run.info is None else self.tables.get(run.info.type)
            if table is not None:
                table.gone(decider.pool, run)

        return gone

    def _changed_in(self, decider: Decider) -> Any:
        def changed(run: Run, instance: EntityInstance) -> None:
            table = self.tables.get(instance.info.type)
            if table is not None:
                table.changed(decider.pool, run, instance)

        return changed

    @property
    def worker_id(self) -> UUID:
        return self.deciders[0].worker_id

    def knows(self, type: str) -> bool:
        return type in self.registry.entities

    # --- one entity

    async def one(self, type: str, key: str, sql: str, params: Any) -> dict[str, Any]:
        """Rows over the last committed state. Raises `EntityNotFound`, and what the sandbox raises."""
        found = await self.states.find(type, key)
        if found is None:
            raise EntityNotFound(f"there is no {type} with the key {key!r}")
        document = Document(type, key, found.data, found.event_id, found.updated_at)
        result = await self.pool.query(document, sql, params)
        return {
            "columns": result.columns,
            "rows": result.rows,
            "source": found.source,
            "event_id": found.event_id,
            "updated_at": found.updated_at,
            "execution_id": str(found.execution_id),
        }

    # --- all of a type

    async def part(self, type: str, sql: str, params: Any, tokens: list[list[Any]], patience: float) -> dict[str, Any]:
        """Rows over all entities of a type here, once what the tokens (key, event id) stand for is among them."""
        if type not in self.registry.entities:
            raise UnknownWorkflowError(type, self.registry.where, list(self.registry.entities))
        table, loop = self._table(type), asyncio.get_running_loop()
        deadline = loop.time() + patience
        while True:
            await table.complete()
            mine = self._mine(tokens)
            if all(table.has(*each) for each in mine):
                try:
                    result, fresh = await table.ask(sql, by_name(params))
                    break
                except Moved:
                    pass
            if loop.time() > deadline:
                raise EntitySqlOff(
                    f"the {type} entities here have not come as far as the commit token asks for"
                    if mine
                    else "ownership is moving too quickly for an answer"
                )
            await asyncio.sleep(LOOK_AGAIN)
        return {
            "columns": result.columns,
            "rows": result.rows,
            "partitions": [list(each) for each in fresh],
            "problems": [[*place, why] for place, why in table.broken.items()],
        }

    def _mine(self, tokens: list[list[Any]]) -> list[tuple[tuple[str, int], str, UUID, int]]:
        mine = []
        for workflow_id, key, execution_id, event_id in tokens:
            partition = partition_of(workflow_id)
            owners = [d for d in self.deciders if d.owns(workflow_id)]
            mine += [((d.pool, partition), key, UUID(execution_id), event_id) for d in owners]
        return mine

    def _table(self, type: str) -> TypeTable:
        table = self.tables.get(type)
        if table is None:
            table = self.tables[type] = TypeTable(
                self.registry.entities[type], self.deciders, max_bytes=self.table_bytes, limits=self.limits
            )
            for decider in self.deciders:  # from the first table on, commits tell of their states
                decider.on_state = self._changed_in(decider)
        return table
