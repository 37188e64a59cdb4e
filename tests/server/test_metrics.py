"""`/api/metrics`, and the board and rules that are made from the list of metrics."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from harvest.telemetry.board import board, prometheus_name, rules
from harvest.telemetry.export import Instruments
from harvest.telemetry.names import METRICS, SERVER
from tests.server import flows

ROOT = Path(__file__).parents[2]


async def test_the_servers_metrics_are_those_that_are_listed(http, door, fleet):
    await (await door.start(flows.greet, "x", id="g")).result()
    await fleet.recorder.run_once()
    await http.get("/api/workflows/by-id/one-of-a-kind")
    answer = await http.get("/api/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {f.name: f for f in text_string_to_metric_families(answer.text) if f.name.startswith("harvest")}
    listed = {prometheus_name(name).removesuffix("_total"): name for name in SERVER}
    assert set(found) <= set(listed)
    for family, name in listed.items():
        for sample in found[family].samples if family in found else ():
            labels = set(sample.labels) - {"otel_scope_name", "otel_scope_version", "otel_scope_schema_url", "le"}
            assert labels == set(SERVER[name].labels), name
    requests = found["harvest_server_requests"].samples
    seen = {(s.labels["route"], s.labels["status"]): s.value for s in requests}
    assert seen["/api/workflows/by-id/{workflow_id}", "404"] == 1
    assert found["harvest_hub_workers"].samples[0].value == 1
    assert found["harvest_hub_partitions_unowned"].samples[0].value == 0
    assert found["harvest_hub_open_runs"].samples[0].value >= 0
    assert "one-of-a-kind" not in answer.text


def test_board_and_rules_are_those_of_the_list():
    """`make board` writes them: they cannot say what is not exported."""
    kept = json.loads((ROOT / "docs/reference/grafana.json").read_text())
    assert kept == board()
    assert yaml.safe_load((ROOT / "docs/reference/alerts.yml").read_text()) == rules()
    names = {prometheus_name(name) for name in METRICS}
    asked = [t["expr"] for p in kept["panels"] for t in p.get("targets", ())] + [
        r["expr"] for r in rules()["groups"][0]["rules"]
    ]
    for word in set(re.findall(r"\b(?:harvest|sticky_execution)\w+", " ".join(asked))):
        assert word.removesuffix("_bucket") in names, word
    assert {p["title"] for p in kept["panels"] if p["type"] != "row"} == set(METRICS)


def test_names_are_as_the_exporter_writes_them():
    registry = CollectorRegistry()
    instruments = Instruments(MeterProvider(metric_readers=[PrometheusMetricReader(registry=registry)]))
    for name, metric in METRICS.items():
        if metric.kind == "histogram":
            instruments.histogram(name).record(1.0, {})
        else:
            instruments.observe(name, lambda: [({}, 1.0)])
    families = text_string_to_metric_families(generate_latest(registry).decode())
    written = {f.name + ("_total" if f.type == "counter" else "") for f in families} - {"target_info", "target"}
    assert written == {prometheus_name(name) for name in METRICS}
