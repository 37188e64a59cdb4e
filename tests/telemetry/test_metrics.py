"""What a worker measures, and its Prometheus endpoint (O-10, W-4)."""

from __future__ import annotations

import asyncio
import urllib.request

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from harvest import Worker, WorkerConfig, errors, workflow
from harvest.telemetry.counts import LastMinute
from harvest.telemetry.export import Instruments
from harvest.telemetry.names import METRICS, WORKER


@workflow.defn
async def waits() -> str:
    return await workflow.receive("go", str)


async def scrape(worker: Worker) -> dict[str, float]:
    assert worker.endpoint is not None
    url = f"http://127.0.0.1:{worker.endpoint.port}/metrics"
    text = await asyncio.to_thread(lambda: urllib.request.urlopen(url).read().decode())
    return {key: float(value) for key, _, value in (line.rpartition(" ") for line in text.splitlines() if line[:1] != "#")}


async def test_a_worker_serves_prometheus(client):
    async with Worker(client, definitions=[waits], config=WorkerConfig(metrics_port=0)) as worker:
        handle = await client.start(waits, id="w")
        await handle.signal("go", "on")
        assert await handle.result(timeout=20) == "on"
        found = await scrape(worker)
        of = {key.replace('otel_scope_name="harvest",', ""): value for key, value in found.items()}
        hits = [v for k, v in of.items() if k.startswith("harvest_workflow_resident_total") and 'outcome="hit"' in k]
        assert hits == [1.0]
        assert any(k.startswith("harvest_owner_partitions{") and v == 512.0 for k, v in of.items())
        assert any(k.startswith("harvest_workflow_resident_duration_seconds_count") and v >= 1 for k, v in of.items())
        assert not [k for k in of if "workflow_id" in k or "execution" in k.replace("sticky_execution", "")]
    with pytest.raises(OSError):
        await scrape(worker)


async def test_the_list_of_metrics_is_closed(client, tmp_path):
    """What is exported is what is listed, with the labels that are listed."""
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    async with Worker(client, definitions=[waits], config=WorkerConfig(metrics_port=0, owner_disk_cache=tmp_path)) as worker:
        await client.disable_owner_mode()
        from harvest.node.instrument import Instrumented

        measured = Instrumented(worker, Instruments(provider), timed=True)
        handle = await client.start(waits, id="w")
        await handle.signal("go", "on")
        assert await handle.result(timeout=20) == "on"
        data = reader.get_metrics_data()
        seen = {}
        for metric in data.resource_metrics[0].scope_metrics[0].metrics:
            seen[metric.name] = {tuple(sorted(point.attributes)) for point in metric.data.data_points}
        assert set(seen) == set(WORKER)
        for name, labels in seen.items():
            assert labels <= {tuple(sorted(METRICS[name].labels))}, name
        measured.close()


async def test_the_port_is_checked(client):
    async with Worker(client, definitions=[waits], config=WorkerConfig(metrics_port=0)) as worker:
        taken = WorkerConfig(metrics_port=worker.endpoint.port)
        with pytest.raises(errors.ConfigError, match="metrics_port"):
            async with Worker(client, definitions=[waits], queue="q", config=taken):
                pass


def test_a_minute_is_a_minute():
    now = 1000.0
    minute = LastMinute(lambda: now)
    minute.add("a")
    now = 1030.0
    minute.add("a", 2)
    minute.add("b")
    assert minute.totals() == {"a": 3, "b": 1}
    now = 1060.5
    assert minute.totals() == {"a": 2, "b": 1}
    now = 1200.0
    assert not minute.totals()
