"""Numbers to the geometry of plots. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from harvest.words import duration

WIDTH, HEIGHT = 600.0, 120.0


@dataclass(frozen=True, slots=True)
class Line:
    """`path` in a box of 600 by 120, y downwards; `last` is the newest value that there is."""

    label: str
    path: str
    last: float | None


@dataclass(frozen=True, slots=True)
class Plot:
    """`top` is the value at the upper edge; `empty` where nothing was ever counted."""

    title: str
    unit: str
    lines: list[Line]
    top: float
    empty: bool
    note: str = ""


def nice(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, … that is not below."""
    if value <= 0:
        return 1.0
    magnitude: float = 10.0 ** math.floor(math.log10(value))
    return next(step * magnitude for step in (1.0, 2.0, 5.0, 10.0) if value <= step * magnitude * (1 + 1e-9))


def plot(title: str, unit: str, series: Sequence[tuple[str, Sequence[float | None]]], note: str = "") -> Plot:
    """Lines over the same points in time, oldest first; None leaves a gap."""
    known = [value for _, values in series for value in values if value is not None]
    top = nice(max(known, default=0.0))
    lines = [
        Line(label, path_of(values, top), next((v for v in reversed(values) if v is not None), None))
        for label, values in series
    ]
    return Plot(title, unit, lines, top, not any(known), note)


def path_of(values: Sequence[float | None], top: float) -> str:
    step = WIDTH / max(1, len(values) - 1)
    pieces, drawing = [], False
    for n, value in enumerate(values):
        if value is None:
            drawing = False
            continue
        y = HEIGHT - HEIGHT * min(value, top) / top
        # A lone point is drawn as a short line, or it would not be seen.
        pieces.append(f"{'L' if drawing else 'M'}{n * step:.1f} {y:.1f}" + ("" if drawing else "h1.5"))
        drawing = True
    return "".join(pieces)


@dataclass(frozen=True, slots=True)
class Bar:
    """One row of a timeline. `x` and `width` of 1,000; a `point` has no length; `css` names its colour."""

    kind: str
    name: str
    x: float
    width: float
    css: str
    point: bool
    title: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """`decisions` share one row; `bars` have one each; `hidden` is how many more there are."""

    seconds: float
    decisions: list[Bar]
    bars: list[Bar]
    hidden: int


MOST_BARS = 150
MODES = {"warm": "warm", "disk": "disk", "cold": "cold", "forced": "forced", "first": "first"}


def timeline(spans: Sequence[Any], now: datetime) -> Timeline:
    """`spans` are those of `handle.timeline()`, the run itself first; what is under way reaches to `now`."""
    run = spans[0]
    end = run.ended_at or max([now, *(s.ended_at or s.started_at for s in spans)])
    length = max((end - run.started_at).total_seconds(), 1e-3)

    def bar(span: Any) -> Bar:
        begin = (span.started_at - run.started_at).total_seconds()
        lasted = ((span.ended_at or end) - span.started_at).total_seconds()
        point = span.ended_at == span.started_at
        x = max(0.0, min(1000.0, 1000 * begin / length))
        css = f"mode-{MODES.get(span.outcome, 'engine')}" if span.kind == "decision" else f"kind-{span.kind}"
        state = span.outcome or "under way"
        when = f"{span.started_at:%H:%M:%S.%f}"[:-3]
        title = f"{span.kind} {span.name}: {state}, {when} UTC" + ("" if point else f", {duration(lasted)}")
        return Bar(span.kind, span.name, x, max(2.0, min(1000 - x, 1000 * lasted / length)), css, point, title)

    decisions = [bar(span) for span in spans[1:] if span.kind == "decision"]
    others = [bar(span) for span in spans[1:] if span.kind not in ("decision", "marker")]
    return Timeline(length, decisions, others[:MOST_BARS], max(0, len(others) - MOST_BARS))
