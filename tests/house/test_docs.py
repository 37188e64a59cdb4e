"""Pages of the reference that must say what the code says."""

from __future__ import annotations

import re
from pathlib import Path

from harvest.config import ServerConfig, WorkerConfig
from harvest.server.reference import page
from harvest.telemetry.names import METRICS

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def rows(page: str) -> dict[str, list[str]]:
    lines = (REFERENCE / page).read_text().splitlines()
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if re.match(r"\| `", line)]
    return {cells[0].strip("`"): cells[1:] for cells in found}


def test_every_metric_is_described_and_no_other():
    page = rows("metrics.md")
    assert list(page) == list(METRICS)
    for name, metric in METRICS.items():
        assert page[name] == [f"{metric.kind}, {metric.unit}", ", ".join(metric.labels), metric.meaning]


def test_every_setting_is_described_and_no_other():
    worker, _, server = (REFERENCE / "settings.md").read_text().partition("## The server")
    assert re.findall(r"^\| `(\w+)` \|", worker, re.M) == list(WorkerConfig.model_fields)
    assert re.findall(r"^\| `(\w+)` \|", server, re.M) == list(ServerConfig.model_fields)


def test_every_route_is_described_and_no_other():
    text = (REFERENCE / "http.md").read_text()
    assert text == page(text), "make routes"
