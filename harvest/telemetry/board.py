"""A Grafana board and Prometheus alert rules, made from the closed list of metrics: they cannot say what is not exported.

`make board` writes them into docs/reference. Pure but for `main`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from harvest.telemetry.names import METRICS

UNITS = {"s": "seconds", "By": "bytes"}
GRAFANA_UNITS = {"s": "s", "By": "bytes"}
ROWS = (
    ("The hub", "harvest.hub."),
    ("Decisions", "harvest.workflow."),
    ("Activities", "harvest.activity."),
    ("Ownership and workers", ("harvest.owner.", "harvest.worker.")),
    ("Sticky execution", ("sticky_execution.", "sticky_execution_workers.")),
    ("The server", "harvest.server."),
)
PANEL_HEIGHT, PANEL_WIDTH, PER_ROW = 7, 8, 3


def prometheus_name(name: str) -> str:
    """As the exporter writes it: dots become underscores, the unit a suffix, and counters end in _total."""
    metric = METRICS[name]
    found = name.replace(".", "_")
    if metric.unit in UNITS and not found.endswith(UNITS[metric.unit]):
        found += f"_{UNITS[metric.unit]}"
    elif metric.unit.endswith("/s"):
        found += "_per_second"
    return found + ("_total" if metric.kind == "counter" else "")


def query(name: str) -> tuple[str, str]:
    """(PromQL, legend) that shows a metric over all workers, by its labels."""
    metric, series = METRICS[name], prometheus_name(name)
    labels = [label for label in metric.labels if label not in ("workflow", "route", "method")] or list(metric.labels[:1])
    by = f" by ({', '.join(labels)})" if labels else ""
    legend = " ".join(f"{{{{{label}}}}}" for label in labels) or name
    if metric.kind == "counter":
        return f"sum{by} (rate({series}[$__rate_interval]))", legend
    if metric.kind == "histogram":
        by = f" by ({', '.join(['le', *labels])})"
        return f"histogram_quantile(0.95, sum{by} (rate({series}_bucket[$__rate_interval])))", f"p95 {legend}"
    return f"{'max' if name.startswith('harvest.hub.') else 'sum'}{by} ({series})", legend


def panel(number: int, name: str, x: int, y: int) -> dict[str, Any]:
    metric = METRICS[name]
    expression, legend = query(name)
    unit = GRAFANA_UNITS.get(metric.unit, "ops" if metric.kind == "counter" else "short")
    return {
        "id": number,
        "type": "timeseries",
        "title": name,
        "description": metric.meaning,
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "gridPos": {"h": PANEL_HEIGHT, "w": PANEL_WIDTH, "x": x, "y": y},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [{"refId": "A", "expr": expression, "legendFormat": legend}],
    }


def board() -> dict[str, Any]:
    """Every metric of the list has its panel, in rows by what it is about."""
    panels: list[dict[str, Any]] = []
    y, number = 0, 1
    for title, prefix in ROWS:
        panels.append({"id": number, "type": "row", "title": title, "gridPos": {"h": 1, "w": 24, "x": 0, "y": y}, "panels": []})
        number, y = number + 1, y + 1
        names = [name for name in METRICS if name.startswith(prefix)]
        for n, name in enumerate(names):
            panels.append(panel(number, name, PANEL_WIDTH * (n % PER_ROW), y + PANEL_HEIGHT * (n // PER_ROW)))
            number += 1
        y += PANEL_HEIGHT * -(-len(names) // PER_ROW)
    source = {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    return {
        "uid": "harvest",
        "title": "Harvest",
        "tags": ["harvest"],
        "timezone": "browser",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [source]},
        "panels": panels,
    }


def rule(alert: str, expression: str, lasting: str, severity: str, summary: str, remedy: str) -> dict[str, Any]:
    return {
        "alert": alert,
        "expr": expression,
        "for": lasting,
        "labels": {"severity": severity},
        "annotations": {"summary": summary, "description": remedy},
    }


RULES = [
    rule(
        "HarvestNoWorkers",
        f"sum({prometheus_name('harvest.hub.workers')}) == 0 or absent({prometheus_name('harvest.hub.workers')})",
        "1m",
        "page",
        "No worker is alive: nothing is decided.",
        "harvest doctor; start workers.",
    ),
    rule(
        "HarvestPartitionsUnowned",
        f"max by (pool) ({prometheus_name('harvest.hub.partitions.unowned')}) > 0",
        "1m",
        "page",
        "{{ $value }} partitions of {{ $labels.pool }} have no owner: their runs stand still.",
        "harvest owner status; harvest doctor tells why workers are refused.",
    ),
    rule(
        "HarvestDecisionsWait",
        f"{prometheus_name('harvest.hub.workflow_backlog')} > 1000",
        "5m",
        "page",
        "{{ $value }} runs are due and wait for a decision.",
        "Add workers; look for code that holds the loop (HarvestLoopBlocked).",
    ),
    rule(
        "HarvestActivitiesWait",
        f"{prometheus_name('harvest.hub.activity_backlog')} > 1000",
        "10m",
        "ticket",
        "{{ $value }} activities are due and wait for a worker.",
        "Add workers of the queue, or slots: HARVEST_MAX_ACTIVITY_SLOTS.",
    ),
    rule(
        "HarvestDeadLetters",
        f"delta({prometheus_name('harvest.hub.dead_letters')}[10m]) > 0",
        "0m",
        "ticket",
        "Runs have been parked: nobody can decide them.",
        "harvest dead-letters causes",
    ),
    rule(
        "HarvestCommitsSlow",
        f'{prometheus_name("harvest.hub.commit.latency")}{{quantile="0.95"}} > 0.5',
        "5m",
        "ticket",
        "Commits take {{ $value | humanizeDuration }} (p95).",
        "Look at Postgres: disk, locks, long transactions (harvest doctor).",
    ),
    rule(
        "HarvestFailovers",
        f"increase({prometheus_name('harvest.owner.failovers')}[10m]) > 2",
        "0m",
        "ticket",
        "Workers die: {{ $value }} were fenced within ten minutes.",
        "Look at their logs and memory limits.",
    ),
    rule(
        "HarvestLoopBlocked",
        f"max by (instance) ({prometheus_name('harvest.worker.loop_blocked')}) > 0",
        "30s",
        "ticket",
        "Code holds the event loop of {{ $labels.instance }}.",
        "The worker's log names the run and the line.",
    ),
    rule(
        "HarvestServerErrors",
        f'sum(rate({prometheus_name("harvest.server.requests")}{{status=~"5.."}}[5m])) > 0.1',
        "5m",
        "ticket",
        "The server answers with errors: {{ $value }} a second.",
        "503 and 504 mean that the hub or the workers are away; 500 is a fault, see its log.",
    ),
]


def rules() -> dict[str, Any]:
    """What somebody should be woken for (page), or look at in the morning (ticket)."""
    return {"groups": [{"name": "harvest", "rules": RULES}]}


def main(folder: Path) -> None:
    """Writes grafana.json and alerts.yml."""
    import yaml  # noqa: PLC0415  only who writes them needs it

    (folder / "grafana.json").write_text(json.dumps(board(), indent=1) + "\n")
    (folder / "alerts.yml").write_text(yaml.safe_dump(rules(), sort_keys=False, width=120))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
