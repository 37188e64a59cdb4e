"""The composition root: definitions and config become running services."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from harvest.activities.sweeper import Sweeper
from harvest.activities.worker import ActivityWorker
from harvest.client.client import Client
from harvest.clock import Clock, SystemClock
from harvest.config import WorkerConfig, seconds
from harvest.core.events import Arrival
from harvest.decider.decider import Decider, DeciderOptions
from harvest.decider.scan import Scanner
from harvest.decisions.ports import Step
from harvest.decisions.run import Delivery
from harvest.definitions.registry import Registry
from harvest.errors import ConfigError, HarvestError
from harvest.hub.database import Session
from harvest.operations.query import Answerer
from harvest.ownership.keeper import Keeper
from harvest.ownership.term import Term
from harvest.service import Service
from harvest.wakes.topics import ASK, DECIDE, QUEUE

log = logging.getLogger("harvest.worker")


class Worker(Service):
    """Runs workflows and activities of one queue.

    `await worker.run()` works until SIGTERM or `stop()`, then drains; `async with worker:` embeds it in a
    program that has a life of its own.
    """

    def __init__(
        self,
        client: Client,
        *,
        definitions: Iterable[Any],
        queue: str = "default",
        config: WorkerConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(queue, str) or not queue:
            raise ConfigError("queue", f"a queue is a non-empty name, got {queue!r}")
        self.client, self.queue = client, queue
        self.config = config or WorkerConfig()
        self.registry = Registry(definitions, where=f"the worker of queue {queue!r}")
        if not self.registry.workflows and not self.registry.activities:
            raise ConfigError("definitions", "a worker needs at least one workflow or activity")
        self._handle_signals = True
        self._build(clock or SystemClock())

    def _build(self, clock: Clock) -> None:
        config, site, db = self.config, self.client.site, self.client.db
        self.keeper = Keeper(
            db,
            self.queue,
            build_id=build_id(config.build_id),
            definitions=self.registry.names(),
            lanes=config.commit_lanes,
            session=lambda: site.listener.session,
            wake_queue=site.notifier.queue,
            clock=clock,
            term=Term(seconds(config.lease_ttl)),
            owns_nothing=not self.registry.workflows,
            interval=min(1.0, seconds(config.scan_interval)),
        )
        self.activities = ActivityWorker(
            db,
            self.registry,
            self.queue,
            slots=config.max_activity_slots,
            threads=config.activity_threads,
            drain=seconds(config.drain_timeout),
            worker_id=lambda: self.keeper.worker_id,
            deliver=self._deliver,
            wake=self._wake,
            router=site.router,
            notifier=site.notifier,
            clock=clock,
            poll=seconds(config.scan_interval),
        )
        self.decider = Decider(
            db,
            self.registry,
            self.queue,
            holdings=self.keeper,
            hands=self.activities,
            router=site.router,
            notifier=site.notifier,
            clock=clock,
            options=DeciderOptions(
                lanes=config.commit_lanes,
                batch=config.max_batch,
                resident_entries=config.workflow_cache_size if config.resident_workflows else 0,
                resident_bytes=config.workflow_cache_bytes,
            ),
        )
        self.scanner = Scanner(self.decider, interval=seconds(config.scan_interval))
        self.sweeper = Sweeper(db, self._wake, self._wake_queue, interval=seconds(config.scan_interval))

    # --- what the services need of each other -------------------------------------------------------

    def _deliver(self, step: Step, arrival: Arrival) -> bool:
        return self.decider.offer(step.execution_id, step.partition, Delivery(arrival))

    def _wake(self, execution_id: UUID, partition: int, pool: str) -> None:
        if pool == self.queue and partition in self.keeper.epochs:
            self.decider.wake(execution_id, partition)
        else:
            self.client.site.notifier.decide(pool, execution_id, partition)

    def _wake_queue(self, queue: str) -> None:
        self.activities.kick(queue)
        self.client.site.notifier.queue(queue)

    def _registered(self, worker_id: UUID) -> None:
        """A new tenure: nothing of the old one is kept."""
        self.decider.drop_all()
        for lane in self.decider.lanes:
            lane.worker_id = worker_id

    async def _reconnected(self, session: Session) -> None:
        await self.keeper.reconnected(session)
        self.scanner.nudge()  # wakes were lost meanwhile
        self.activities.kick(self.queue)

    # --- life -------------------------------------------------------------------------------------

    async def _open(self) -> None:
        site = self.client.site
        if site.listener.session is None:
            raise HarvestError("the client is not open", hint="async with harvest.connect(...) as client: ...")
        await site.listener.add([DECIDE, QUEUE, ASK])
        site.listener.on_connect.append(self._reconnected)
        self._services: list[Service] = []
        await self._enter(self.keeper)
        self.keeper.on_registered.append(self._registered)
        await self._enter(self.decider)
        await self._enter(self.activities)
        await self._enter(self.scanner)
        await self._enter(self.sweeper)
        self.answerer = Answerer(site, self.decider)
        site.owners.append(self.decider)
        self.keeper.on_acquired.append(self.scanner.acquired)
        if self.keeper.epochs:  # acquired before there was a decider
            self.scanner.acquired(list(self.keeper.epochs))
        tune_gc()
        if self.registry.workflows and not self.keeper.epochs:
            log.warning("another worker owns queue %r: this one stands by for its workflows, and runs activities", self.queue)
        log.info(
            "worker %s serves queue %r: %d workflows, %d activities, %d partitions",
            self.keeper.worker_id,
            self.queue,
            len(self.registry.workflows),
            len(self.registry.activities),
            len(self.keeper.epochs),
        )

    async def _enter(self, service: Service) -> None:
        await service.__aenter__()
        self._services.append(service)

    async def _run(self) -> None:
        """Until it is asked to stop, or one of its services ends."""
        mains = [s._main for s in self._services if s._main is not None]
        stopping = asyncio.create_task(self.stopping.wait())
        await asyncio.wait({*mains, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        for main in mains:
            if main.done() and not main.cancelled() and main.exception() is not None:
                raise main.exception() or RuntimeError()

    async def _close(self) -> None:
        """Activities first (their results still want a decider), then decisions, then what is owned."""
        site = self.client.site
        if self.decider in site.owners:
            site.owners.remove(self.decider)
            self.answerer.leave()
        if self._reconnected in site.listener.on_connect:
            site.listener.on_connect.remove(self._reconnected)
        opened = getattr(self, "_services", [])
        for service in (self.scanner, self.sweeper, self.activities, self.decider, self.keeper):
            if service in opened:
                try:
                    await service.stop()
                except Exception as exc:
                    log.error("%s did not stop cleanly: %s", type(service).__name__, exc)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        handled = []
        if self._handle_signals and self._main is None:
            for number in (signal.SIGTERM, signal.SIGINT):
                try:
                    loop.add_signal_handler(number, self.stopping.set)
                    handled.append(number)
                except (NotImplementedError, RuntimeError, ValueError):
                    break
        try:
            await super().run()
        finally:
            for number in handled:
                loop.remove_signal_handler(number)

    def effective_config(self) -> dict[str, Any]:
        """What is really on, for people and for `harvest doctor`."""
        return {
            "queue": self.queue,
            "build_id": self.keeper.build_id,
            "worker_id": str(self.keeper.worker_id),
            "owner_mode": bool(self.registry.workflows),
            "partitions": len(self.keeper.epochs),
            **self.registry.names(),
            **self.config.model_dump(mode="json"),
        }


def build_id(name: str) -> str:
    """asyncio differs between Python's minor versions, so the version belongs to the build."""
    return f"{name}+py{sys.version_info.major}.{sys.version_info.minor}"


def tune_gc() -> None:
    """A full collection over many parked runs costs tens of milliseconds: what is loaded by now is left out, and
    collections come rarely."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
