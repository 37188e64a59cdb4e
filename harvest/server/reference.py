"""docs/reference/http.md: a line per route, from the routes themselves. `make routes` writes it, a test holds it to them."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from fastapi.routing import APIRoute
from pydantic import BaseModel

from harvest.client import connect
from harvest.server.access import Principal
from harvest.server.api import PREFIX, collection, entities, fleet, runs
from harvest.server.desk import Desk

BEGIN, END = "<!-- routes -->", "<!-- end of routes -->"
TITLES = ("All runs, and the dead letters", "One run", "Entities", "The fleet and the hub")


def tables() -> str:
    """All routes by what they are about. The two families of runs are shown once, as `…/`."""
    desk = Desk(connect("postgresql://nowhere/"), lambda: Principal("nobody"))
    groups = (
        collection.routes(desk, PREFIX).routes,
        runs.routes(desk, runs.by_execution(desk), "/…", "run").routes,
        entities.routes(desk, PREFIX).routes,
        fleet.routes(desk, PREFIX).routes,
    )
    pieces = []
    for title, routes in zip(TITLES, groups, strict=True):
        pieces.append(
            f"## {title}\n\n| | route | scope | | query and body |\n| --- | --- | --- | --- | --- |\n"
            + "".join(map(_line, routes))
        )
    return "\n".join(pieces)


def _line(route: object) -> str:
    assert isinstance(route, APIRoute)
    scope = next((s for d in route.dependencies if (s := getattr(d.dependency, "scope", None))), "")
    text = inspect.getdoc(route.endpoint) or route.name.replace("_", " ")
    path = route.path_format.removeprefix("/") if route.path_format.startswith("/…") else route.path_format
    return f"| {' '.join(sorted(route.methods or ()))} | `{path}` | {scope} | {' '.join(text.split())} | {_taken(route)} |\n"


def _taken(route: APIRoute) -> str:
    """What it takes: `?name` of the query, then the members of the body, those that may be left out in brackets."""
    asked = [f"`?{param.alias}`" for param in route.dependant.query_params]
    model = None if route.body_field is None else _model_of(route.body_field.field_info.annotation)
    return " ".join([*asked, *([] if model is None else [f"`{_members(model)}`"])])


def _members(model: type[BaseModel]) -> str:
    found = []
    for name, field in model.model_fields.items():
        within = _model_of(field.annotation)
        text = name if within is None else f"{name}: {_members(within)}"
        found.append(text if field.is_required() else f"[{text}]")
    return "{" + ", ".join(found) + "}"


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """The model that an annotation is or may be; None for lists of them and for plain values."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, UnionType, Annotated):
        return next((model for each in get_args(annotation) if (model := _model_of(each)) is not None), None)
    return None


def page(text: str) -> str:
    """The page with its tables made anew."""
    head, _, rest = text.partition(BEGIN)
    return f"{head}{BEGIN}\n\n{tables()}\n{END}{rest.partition(END)[2]}"


def main(path: Path) -> None:
    path.write_text(page(path.read_text()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
