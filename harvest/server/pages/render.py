"""Templates, and how values look in them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from harvest.client.plain import plain
from harvest.server.headers import AS_TEXT
from harvest.words import duration

PAGES = (("Runs", "/", "r"), ("Entities", "/entities", "e"), ("Fleet", "/fleet", "f"), ("Health", "/health", "h"))
LONGEST_TEXT = 20_000


def ago(moment: datetime | None) -> Markup:
    """`3 min ago`, with the time itself on hovering."""
    if moment is None:
        return Markup("")
    seconds = (datetime.now(UTC) - moment).total_seconds()
    text = (
        "just now"
        if -1 < seconds < 1
        else f"in {duration(round(-seconds))}"
        if seconds < 0
        else f"{duration(int(seconds))} ago"
    )
    return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(
        moment.isoformat(), moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S"), text
    )


def pretty(value: Any) -> str:
    text = json.dumps(plain(value), indent=2, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}\n… {len(text) - LONGEST_TEXT:,} more characters"


def plural(count: int, noun: str) -> str:
    return f"{number(count)} {noun}{'' if count == 1 else 's'}"


def number(value: float | None) -> str:
    """Three figures, with a unit of thousands where it is large."""
    if value is None:
        return "–"
    for unit, size in (("M", 1e6), ("k", 1e4)):
        if abs(value) >= size:
            return f"{value / (1e6 if unit == 'M' else 1e3):.3g} {unit}"
    return f"{value:,.0f}" if value == int(value) else f"{value:.3g}"


def size(value: float | None) -> str:
    if value is None:
        return "–"
    for unit, n in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= n:
            return f"{value / n:.3g} {unit}"
    return f"{value:.0f} B"


def kind_of(value: Any) -> str:
    """The class of a JSON value, for the tree."""
    names = {bool: "bool", int: "num", float: "num", str: "str", type(None): "null", dict: "map", list: "list"}
    return names.get(type(value), "str")


def _environment() -> Environment:
    found = Environment(
        loader=PackageLoader("harvest.server.pages"),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(plural=plural, ago=ago, pretty=pretty, number=number, duration=duration, size=size, kind_of=kind_of)
    return found


TEMPLATES = _environment()


def base_of(request: Request, page: str) -> str:
    """What stands before the dashboard's own paths, wherever it is mounted."""
    path: str = request.scope["path"]
    root: str = request.scope.get("root_path", "").rstrip("/")
    if not path.startswith(root):  # a proxy in front takes it off
        path = root + path
    return path[: len(path) - len(page)].rstrip("/") if path.endswith(page) else path.rstrip("/")


def html(request: Request, template: str, page: str, *, code: int = 200, **values: Any) -> HTMLResponse:
    """`page` is its path within the dashboard."""
    who = getattr(request.state, "harvest_who", None)
    base = base_of(request, page)
    text = TEMPLATES.get_template(template).render(base=base, page=page, pages=PAGES, who=who, request=request, **values)
    headers = AS_TEXT | {"Cache-Control": "no-store"}
    return HTMLResponse(text, code, headers)
