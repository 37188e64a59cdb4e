"""`/api/metrics`: what the server counts, and what it knows of the whole hub, as Prometheus reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Any

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry, generate_latest

from harvest.client import Client
from harvest.operations.fleet import failover_count
from harvest.operations.health import STEP
from harvest.operations.watch import Watch
from harvest.server.shared import Shared
from harvest.telemetry.export import Instruments, Sample
from harvest.telemetry.names import SERVER

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class ServerMetrics:
    """Of one server. What concerns the hub is read when it is scraped, once for all scrapers of a moment."""

    def __init__(self, client: Client, shared: Shared, watch: Watch) -> None:
        self.client, self.shared, self.watch = client, shared, watch
        self._registry = CollectorRegistry()
        self._provider = MeterProvider(metric_readers=[PrometheusMetricReader(registry=self._registry)])
        self._instruments = Instruments(self._provider)
        self._requests: Counter[tuple[str, str, str]] = Counter()
        self._hub: dict[str, list[Sample]] = {}
        self._duration = self._instruments.histogram("harvest.server.request.duration")
        self._instruments.observe("harvest.server.requests", self._counted)
        self._instruments.observe("harvest.server.streams", lambda: [({}, watch.viewers)])
        for name in SERVER:
            if name.startswith("harvest.hub."):
                self._instruments.observe(name, partial(self._of_hub, name))

    def record(self, route: str, method: str, status: int, seconds: float | None) -> None:
        """A request is over; `seconds` is None for a stream."""
        self._requests[route, method, str(status)] += 1
        if seconds is not None:
            self._duration.record(seconds, {"route": route, "method": method})

    def _counted(self) -> Iterable[Sample]:
        return [({"route": r, "method": m, "status": s}, n) for (r, m, s), n in list(self._requests.items())]

    def _of_hub(self, name: str) -> Iterable[Sample]:
        return self._hub.get(name, [])

    async def text(self) -> bytes:
        """All of it, in Prometheus' text format."""
        self._hub = await self.shared.get("metrics", self._read, 2.0)
        return generate_latest(self._registry)

    async def _read(self) -> dict[str, list[Sample]]:
        status = await self.client.owner_status()
        points = await self.client.health(over=STEP)
        found: dict[str, list[Sample]] = {
            "workers": [({"queue": q}, n) for q, n in sorted(Counter(w.queue for w in status.workers).items())],
            "failovers": [({}, await failover_count(self.client.site))],
        }
        if status.mode == "owner":
            served = {pool for worker in status.workers for pool in worker.pools}
            found["partitions.unowned"] = [({"pool": p.pool}, p.free) for p in status.pools if p.pool in served]
        last: Any = points[-1] if points else None
        if last is not None:
            found |= {name: [({}, n)] for name, n in (last.hub or {}).items() if name != "unowned_partitions"}
            found["decisions.rate"] = [({}, last.decisions)]
            found["replays.rate"] = [({"mode": mode}, n) for mode, n in last.modes.items()]
            found["closed.rate"] = [({"state": state}, n) for state, n in last.closed.items()]
            for name, both in (("commit.latency", last.commit), ("schedule_to_start", last.schedule_to_start)):
                known = zip(("0.5", "0.95"), both, strict=True)
                found[name] = [({"quantile": q}, value) for q, value in known if value is not None]
        return {f"harvest.hub.{name}": samples for name, samples in found.items()}
