"""OpenTelemetry instruments over plain numbers, and the Prometheus endpoint of a worker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

from harvest.errors import ConfigError
from harvest.telemetry.names import METRICS

log = logging.getLogger("harvest.telemetry")
Sample = tuple[Mapping[str, str], float]
Read = Callable[[], Iterable[Sample]]


SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the classes of a histogram: all of them measure seconds."""


class Instruments:
    """Registers one observable instrument per metric; `sources` give the samples when they are read.

    `provider` is an OpenTelemetry meter provider; without one the global one is used, which measures nothing until the program
    sets one up.
    """

    def __init__(self, provider: Any = None) -> None:
        self._meter = metrics.get_meter("harvest", meter_provider=provider)
        self._sources: dict[str, list[Read]] = {}
        self._histograms: dict[str, Any] = {}

    def observe(self, name: str, read: Read) -> None:
        """`read()` gives (labels, value) pairs. Several sources of one metric are put together."""
        sources = self._sources.get(name)
        if sources is not None:
            sources.append(read)
            return
        metric = METRICS[name]
        self._sources[name] = [read]

        def callback(_: CallbackOptions) -> Iterable[Observation]:
            found: dict[tuple[tuple[str, str], ...], float] = {}
            for source in self._sources[name]:
                for labels, value in source():
                    key = tuple(sorted(labels.items()))
                    found[key] = found.get(key, 0) + value
            return [Observation(value, dict(key)) for key, value in found.items()]

        make = self._meter.create_observable_counter if metric.kind == "counter" else self._meter.create_observable_gauge
        make(name, callbacks=[callback], unit=metric.unit, description=metric.meaning)

    def forget(self, read: Read) -> None:
        for sources in self._sources.values():
            if read in sources:
                sources.remove(read)

    def histogram(self, name: str) -> Any:
        """Has `record(value, labels)`."""
        if name not in self._histograms:
            metric = METRICS[name]
            self._histograms[name] = self._meter.create_histogram(
                name, unit=metric.unit, description=metric.meaning, explicit_bucket_boundaries_advisory=SECONDS
            )
        return self._histograms[name]


def is_set_up() -> bool:
    """True when the program has a meter provider of its own: what it costs to time each decision is worth it then."""
    return not type(metrics.get_meter_provider()).__name__.startswith(("_Proxy", "NoOp"))


class Endpoint:
    """Serves Prometheus' text format at `http://host:port/metrics` from a thread, until `close`."""

    def __init__(self, host: str, port: int) -> None:
        try:
            from opentelemetry.exporter.prometheus import PrometheusMetricReader  # noqa: PLC0415  an optional dependency
            from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415
            from prometheus_client import CollectorRegistry, start_http_server  # noqa: PLC0415
        except ImportError as exc:
            raise ConfigError(
                "metrics_port", f"{exc.name} is not installed", hint="pip install 'harvest-engine[metrics]'"
            ) from exc
        registry = CollectorRegistry()
        reader = PrometheusMetricReader(registry=registry)
        self.provider = MeterProvider(metric_readers=[reader])
        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        except OSError as exc:
            raise ConfigError(
                "metrics_port",
                f"cannot listen on {host}:{port}: {exc.strerror or exc}",
                hint="choose another HARVEST_METRICS_PORT or HARVEST_METRICS_HOST; 0 takes a free port",
            ) from exc
        self.port: int = self._server.server_port
        log.info("metrics at http://%s:%d/metrics", host, self.port)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(2)
        self.provider.shutdown()
