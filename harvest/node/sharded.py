"""A worker for several hubs: one worker per shard, in one process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from harvest.client.shards import ShardedClient
from harvest.config import WorkerConfig
from harvest.errors import ConfigError, DefinitionError, HarvestError
from harvest.node.worker import Worker
from harvest.service import Service

log = logging.getLogger("harvest.worker")
TRY_AGAIN = 1.0


class ShardedWorker(Service):
    """Like `Worker`, on a `ShardedClient`. A shard that is down, or whose worker ended, is tried again each second; the
    others go on. Slots and caches are per shard; `metrics_port` is taken by the first shard, the next ones take the following
    ports; `owner_disk_cache` has a directory for each.
    """

    def __init__(
        self,
        client: ShardedClient,
        *,
        definitions: Iterable[Any],
        queue: str = "default",
        config: WorkerConfig | None = None,
    ) -> None:
        super().__init__()
        self.client, self.queue = client, queue
        self.config = config or WorkerConfig()
        self.definitions = list(definitions)
        self.workers: dict[int, Worker] = {}
        self._make(0)  # what is wrong with the definitions is said at once

    def _make(self, shard: int) -> Worker:
        own: dict[str, Any] = {}
        if self.config.metrics_port:
            own["metrics_port"] = self.config.metrics_port + shard
        if self.config.owner_disk_cache is not None:
            own["owner_disk_cache"] = self.config.owner_disk_cache / f"shard-{shard}"
        config = self.config.model_copy(update=own)
        return Worker(self.client.clients[shard], definitions=self.definitions, queue=self.queue, config=config)

    async def _open(self) -> None:
        await self._start_missing()

    async def _start_missing(self) -> None:
        for shard in self.client.up:
            current = self.workers.get(shard)
            if current is not None and current.alive:
                continue
            worker = self._make(shard)
            try:
                await worker.__aenter__()
            except (ConfigError, DefinitionError):
                raise
            except Exception as exc:
                log.warning("no worker for shard %d yet: %s", shard, str(exc) or type(exc).__name__)
                continue
            self.workers[shard] = worker

    async def _run(self) -> None:
        while not self.stopping.is_set():
            try:
                await asyncio.wait_for(self.stopping.wait(), TRY_AGAIN)
            except TimeoutError:
                try:
                    await self._start_missing()
                except HarvestError as exc:
                    log.error("a shard has no worker: %s", exc)

    async def _close(self) -> None:
        results = await asyncio.gather(*(worker.stop() for worker in self.workers.values()), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                log.error("a worker did not stop cleanly: %s", result)

    async def run(self) -> None:
        async with self.signals():
            await super().run()

    def effective_config(self) -> dict[int, dict[str, Any]]:
        """By shard."""
        return {shard: worker.effective_config() for shard, worker in self.workers.items()}
