"""The composition root: definitions and config become running services."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

from harvest.activities.sweeper import Sweeper
from harvest.activities.worker import ActivityWorker
from harvest.client.client import Client
from harvest.clock import Clock, HubClock, SystemClock
from harvest.config import WorkerConfig, seconds
from harvest.core.events import Arrival
from harvest.decider.tracing import Tracing
from harvest.decisions.ports import Step
from harvest.decisions.run import Delivery
from harvest.definitions.registry import Registry
from harvest.diskcache import Cache, DirectoryBusy
from harvest.entities.service import EntitySql
from harvest.errors import ConfigError, HarvestError
from harvest.hub import workflow_tasks
from harvest.hub.database import Session, explained
from harvest.hub.sqlstate import DATABASE_ERRORS
from harvest.ids import check_queue, pool_of
from harvest.node.instrument import Instrumented
from harvest.node.recorder import Recorder
from harvest.node.unit import Unit
from harvest.operations.entity_sql import reply
from harvest.operations.query import Answerer
from harvest.operations.site import Site
from harvest.ownership.keeper import Identity, Keeper
from harvest.ownership.term import Term
from harvest.service import Service
from harvest.telemetry import traces
from harvest.telemetry.export import Endpoint, Instruments, is_set_up
from harvest.wakes.topics import ASK, DECIDE, OWNERS, QUEUE, WATCH

log = logging.getLogger("harvest.worker")
DEFAULT_BUILD = "default"
HUB_AT_STOP = 3.0
"""Seconds that each step of a stop waits for a hub that is away."""
FINISH_LOCAL = 0.2
"""Seconds that local steps get to finish before a stopping worker hands its runs over."""


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
        check_queue("queue", queue)
        self.client, self.queue = client, queue
        self.config = config or WorkerConfig()
        self.registry = Registry(definitions, where=f"the worker of queue {queue!r}")
        if not self.registry.workflows and not self.registry.activities:
            raise ConfigError("definitions", "a worker needs at least one workflow or activity")
        self.clock = clock or HubClock(SystemClock())
        self._build()

    def _build(self) -> None:
        config, site, db = self.config, self.client.site, self.client.db
        pools = [self.queue]
        if config.build_id != DEFAULT_BUILD and self.registry.workflows:
            pools.append(pool_of(self.queue, config.build_id))
        interval = seconds(config.scan_interval)
        self.cache = None if config.owner_disk_cache is None else Cache(config.owner_disk_cache)
        names = self.registry.names()
        if config.owner_entity_sql:
            names["sql"] = names["entities"]
        self.keeper = Keeper(
            db,
            Identity(
                self.queue,
                pools,
                build_id(config.build_id),
                names,
                config.commit_lanes * len(pools),
                can_own=bool(self.registry.workflows) and config.owner_mode and config.max_workflow_slots > 0,
                cache_capacity=config.workflow_cache_size if config.keeps_residents else 0,
                config=json.dumps(config.shown()),
            ),
            router=site.router,
            notifier=site.notifier,
            clock=self.clock,
            term=Term(seconds(config.lease_ttl)),
            figures=self._figures,
            interval=min(1.0, interval),
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
            clock=self.clock,
            poll=interval,
        )
        self.units = {pool: Unit(self, pool, number) for number, pool in enumerate(pools)}
        main = self.units[self.queue].scanner
        main.queue, main.names, main.on_activities = self.queue, self.activities.names, self.activities.due_in
        self.decider = self.units[self.queue].decider
        self.scanner = self.units[self.queue].scanner
        deciders = [unit.decider for unit in self.units.values()]
        self.entity_sql = (
            EntitySql(db, self.registry, deciders, table_bytes=config.entity_table_bytes) if config.owner_entity_sql else None
        )
        self.recorder = Recorder(self)
        self.sweeper = Sweeper(db, self._wake, self._wake_queue, interval=interval, sharers=lambda: 1 + self.keeper.peers)

    # --- what the services need of each other -------------------------------------------------------

    def _deliver(self, step: Step, arrival: Arrival, lost: Callable[[], None] | None) -> bool:
        unit = self.units.get(step.pool)
        delivery = Delivery(arrival, lost=lost)
        return unit is not None and unit.decider.offer(step.execution_id, step.partition, delivery)

    def _wake(self, execution_id: UUID, partition: int, pool: str) -> None:
        unit = self.units.get(pool)
        if unit is not None and unit.decider.holdings.covers(execution_id, partition):
            unit.decider.wake(execution_id, partition)
        else:
            self.client.site.notifier.decide(pool, execution_id, partition)

    def _wake_queue(self, queue: str) -> None:
        self.activities.kick(queue)
        self.client.site.notifier.queue(queue)

    def _registered(self, worker_id: UUID) -> None:
        """A new tenure: nothing of the old one is kept."""
        for unit in self.units.values():
            unit.claims.held.clear()
            unit.decider.take_up(unit.decider.holdings, worker_id)

    async def _in_mode(self, mode: str) -> None:
        self.client.site.in_mode(mode)
        for unit in self.units.values():
            await unit.enter(mode, self.keeper.worker_id)

    async def _reconnected(self, session: Session) -> None:
        self.keeper.nudge()  # wakes were lost meanwhile
        for unit in self.units.values():
            unit.scanner.nudge()
            unit.claimer.nudge()
        self.activities.kick(self.queue)

    def _figures(self) -> str:
        """The cache as the heartbeat reports it (W-1). Called on the lease thread: reads numbers only."""
        units = list(self.units.values())
        return json.dumps(
            {
                "size": sum(len(u.decider.residents) for u in units),
                "bytes": sum(u.decider.residents.bytes for u in units),
                "hit_count": sum(u.decider.residents.hits for u in units),
                "miss_count": sum(u.decider.residents.misses for u in units),
                "forced_cold_replay_count": sum(u.decider.residents.forced for u in units),
                "eviction_count": sum(u.decider.residents.evictions for u in units),
                "last_minute": sum((u.decider.minute.totals() for u in units), Counter()),
                "claimed": sum(len(u.claims.held) for u in units),
                "blocked_by": self.keeper.lease.blocked_by if self.keeper.lease is not None else "",
            }
        )

    # --- life -------------------------------------------------------------------------------------

    async def _open(self) -> None:
        try:
            await self._start()
        except DATABASE_ERRORS as exc:
            raise explained(exc, self.client.db.dsn) from exc

    async def _start(self) -> None:
        site = self.client.site
        if not site.listener.started.is_set() or site.listener.stopping.is_set():
            raise HarvestError("the client is not open", hint="async with harvest.connect(...) as client: ...")
        port = self.config.metrics_port  # before anything is owned: a port that is taken costs the fleet nothing
        self.endpoint = None if port is None else Endpoint(self.config.metrics_host, port)
        await self._open_cache()
        await site.listener.add([DECIDE, QUEUE, ASK, OWNERS, WATCH])
        site.listener.on_connect.append(self._reconnected)
        self._services: list[Service] = []
        self.keeper.on_registered.append(self._registered)
        self.keeper.on_mode.append(self._in_mode)
        await self._enter(self.keeper)
        for unit in self.units.values():
            await self._enter(unit.decider)
        await self._enter(self.activities)
        for unit in self.units.values():
            await self._enter(unit.scanner)
            await self._enter(unit.claimer)
            if unit.shelf is not None:
                await self._enter(unit.shelf)
        await self._enter(self.sweeper)
        await self._enter(self.recorder)
        if self.entity_sql is not None:
            await self._enter(self.entity_sql)
            site.sql.append(self.entity_sql)
        self._measure()
        self.answerers = [
            Answerer(site, unit.decider, unit.claimer.take_one, self._reply, first=unit.decider is self.decider)
            for unit in self.units.values()
        ]
        site.owners.extend(unit.decider for unit in self.units.values())
        tune_gc()
        self._say_hello()

    async def _reply(self, site: Site, question: str, name: str, input: str) -> None:
        await reply(site, self.entity_sql, question, name, input)

    async def _open_cache(self) -> None:
        """Before anything is owned. Another process that has the directory fails the start (D-1)."""
        if self.cache is None:
            return
        try:
            await self.cache.open()
        except DirectoryBusy as exc:
            raise ConfigError("owner_disk_cache", str(exc)) from None
        except OSError as exc:
            raise ConfigError("owner_disk_cache", f"{exc.filename or ''} cannot be used: {exc.strerror or exc}") from None

    def _measure(self) -> None:
        """With `metrics_port` an endpoint of its own, else whatever OpenTelemetry provider the program has set up."""
        provider = None if self.endpoint is None else self.endpoint.provider
        for unit in self.units.values():
            unit.decider.tracing = Tracing(self.queue) if traces.on() else None
        self.instrumented = Instrumented(self, Instruments(provider), timed=provider is not None or is_set_up())

    def _say_hello(self) -> None:
        keeper = self.keeper
        log.info(
            "worker %s serves queue %r in %s mode%s: %d workflows, %d activities, %d partitions",
            keeper.worker_id,
            self.queue,
            keeper.mode,
            "" if keeper.me.can_own or keeper.mode == "sticky" else ", and owns nothing",
            len(self.registry.workflows),
            len(self.registry.activities),
            keeper.partitions,
        )

    async def _enter(self, service: Service) -> None:
        self._services.append(service)  # first: what fails half-way has something to give back
        await service.__aenter__()

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
        """Runs go to the peers at once; activities that are under way may finish here, and their results are theirs."""
        site, units = self.client.site, list(self.units.values())
        site.owners = [owner for owner in site.owners if owner not in [unit.decider for unit in units]]
        for answerer in getattr(self, "answerers", []):
            answerer.leave()
        if self._reconnected in site.listener.on_connect:
            site.listener.on_connect.remove(self._reconnected)
        opened = getattr(self, "_services", [])
        if self.entity_sql is not None and self.entity_sql in site.sql:
            site.sql.remove(self.entity_sql)
        await self._stop([s for s in (self.entity_sql, *(u.shelf for u in units)) if s is not None], opened)
        self.activities.stop_claiming()
        await self._unpin()
        await self._stop([*(u.scanner for u in units), *(u.claimer for u in units)], opened)
        if self.activities in opened:
            await self.activities.finish_local(FINISH_LOCAL)
        await self._stop([unit.decider for unit in units], opened)
        if self.keeper in opened and not self.keeper.stopping.is_set():
            try:
                async with asyncio.timeout(HUB_AT_STOP):
                    await self.keeper.hand_over()
            except Exception as exc:
                log.error("could not hand over, peers will wait for the lease: %s", str(exc) or type(exc).__name__)
        await self._stop([self.activities, self.recorder, self.sweeper, self.keeper], opened)
        if self.cache is not None:
            await self.cache.close()
        if (instrumented := getattr(self, "instrumented", None)) is not None:
            instrumented.close()
        if (endpoint := getattr(self, "endpoint", None)) is not None:
            endpoint.close()

    async def _unpin(self) -> None:
        """S-5: peers may claim what waits as soon as the drain begins; what parks during it is not pinned."""
        for unit in self.units.values():
            unit.claimer.window = None
            for claim in unit.claims.held.values():
                claim.window = None
        if self.keeper.mode == "sticky" and self.keeper.lease is not None:
            try:
                async with asyncio.timeout(HUB_AT_STOP):
                    await workflow_tasks.unpin(self.client.db, self.keeper.worker_id)
            except Exception as exc:
                log.warning("could not release the pins, they run out: %s", str(exc) or type(exc).__name__)

    async def _stop(self, services: list[Service], opened: list[Service]) -> None:
        for service in services:
            if service in opened:
                try:
                    await service.stop()
                except Exception as exc:
                    log.error("%s did not stop cleanly: %s", type(service).__name__, exc)

    async def run(self) -> None:
        async with self.signals():
            await super().run()

    def effective_config(self) -> dict[str, Any]:
        """What is really on, for people and for `harvest doctor`."""
        keeper = self.keeper
        return {
            "queue": self.queue,
            "pools": keeper.me.pools,
            "worker_id": str(keeper.worker_id),
            **keeper.report(),
            **self.registry.names(),
            **self.config.shown(),
            "build_id": keeper.me.build_id,
            "owner_mode": keeper.me.can_own,
            "sticky_cache_enabled": keeper.me.cache_capacity > 0,
            "resident_workflows": self.decider.residents.entries > 0,
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
