"""Replays histories, from files or of the open runs of a hub, against definitions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from harvest.client.client import Client
from harvest.client.handle import WorkflowHandle
from harvest.core.entity import rebuild
from harvest.core.loop import in_callback
from harvest.core.replay import History, decode_history, replay
from harvest.decisions.load import info_of
from harvest.definitions.entity import EntityDefinition
from harvest.definitions.registry import Registry
from harvest.errors import HarvestError, UnknownActivityError
from harvest.hub import executions, history

PAGE = 50


@dataclass(frozen=True, slots=True)
class Replayed:
    """How one history went: `error` is None when it fits."""

    workflow_id: str
    execution_id: str
    type: str
    decisions: int
    error: str | None

    @property
    def fits(self) -> bool:
        return self.error is None


class Replayer:
    """`definitions` as for a worker: decorated objects or modules."""

    def __init__(self, definitions: Iterable[Any]) -> None:
        self.registry = Registry(definitions, where="the code to replay against")

    def replay(self, found: History, pool: str | None = None) -> Replayed:
        """One history. Never raises for a misfit: it is in the answer."""
        info = found.info
        error: str | None = None
        try:
            queue = pool or info.queue

            def check(name: str, at: str | None) -> None:
                if (at is None or at == queue) and self.registry.activities and name not in self.registry.activities:
                    raise UnknownActivityError(name, queue, list(self.registry.activities))

            program = self.registry.workflow(info.type)
            if isinstance(program, EntityDefinition):
                rebuild(info, program, found.decisions, check).seal()
            else:
                replay(info, program, found.decisions, check).seal()
        except HarvestError as exc:
            error = str(exc)
        except Exception as exc:
            error = f"{type(exc).__name__}: {exc}"
        return Replayed(info.workflow_id, info.execution_id, info.type, len(found.decisions), error)

    def replay_file(self, raw: bytes | str) -> Replayed:
        """A history that `harvest run history --export` wrote. `HarvestError` when it is not one."""
        try:
            return self.replay(decode_history(raw))
        except msgspec.DecodeError as exc:
            raise HarvestError(f"not a history: {exc}", hint="write one with `harvest run history ID --export FILE`") from None

    async def replay_handle(self, handle: WorkflowHandle[Any]) -> Replayed:
        """The execution that a handle was made for."""
        return await in_callback(partial(self.replay, decode_history(await handle.export_history())))

    async def replay_open(self, client: Client, queue: str | None = None, *, limit: int = 100_000) -> AsyncIterator[Replayed]:
        """The open runs of a hub (of one queue, when given), oldest first."""
        rows = await executions.open_runs(client.db, queue, limit)
        for start in range(0, len(rows), PAGE):
            ids = [row["execution_id"] for row in rows[start : start + PAGE]]
            infos = await executions.load(client.db, ids)
            decisions = await history.load(client.db, ids)
            for execution_id in ids:
                row = infos.get(execution_id)
                if row is not None and row["state"] == "RUNNING":
                    yield await in_callback(partial(self.replay, History(info_of(row), decisions[execution_id])))

    async def count_open(self, client: Client, queue: str | None = None, *, limit: int = 100_000) -> int:
        return len(await executions.open_runs(client.db, queue, limit))
