"""Routes of the API: errors become problems, mutating calls leave an audit row, paths keep what was encoded in them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Coroutine
from time import perf_counter
from typing import Any
from urllib.parse import unquote

from fastapi import HTTPException, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException as StarletteHTTPException

from harvest.entity_sql import SqlError
from harvest.errors import HarvestError
from harvest.operations.audit import Auditor
from harvest.server import problems
from harvest.server.access import SAFE, Principal
from harvest.server.metrics import ServerMetrics

NAMED = ("id", "type", "verb", "name", "dry_run", "everything", "signal", "update")
FILTERS = ("state", "type", "queue", "prefix", "after", "before")
"""What of a body is put into the audit: ids and names, no payload."""


class Route(APIRoute):
    """A route whose errors are problem documents wherever it is mounted, and whose requests are counted."""

    metrics: ServerMetrics
    first: Callable[[Request], Awaitable[object]] | None = None

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle, metrics, first = super().get_route_handler(), self.metrics, type(self).first
        known = _queried(self.dependant)

        async def answer(request: Request) -> Response:
            began = perf_counter()
            strange = first is not None and next((name for name in request.query_params if name not in known), None)
            if strange:  # in another application its door may know it
                response: Response = problems.unknown_parameter(strange, sorted(known))
            else:
                response = await _answered(handle, request, first)
            stream = isinstance(response, StreamingResponse)
            metrics.record(
                template_of(request), request.method, response.status_code, None if stream else perf_counter() - began
            )
            deed = getattr(request.state, "harvest_deed", None)
            if deed is not None:
                auditor, audit_id = deed
                auditor.finish(audit_id, response.status_code)
            return response

        return answer


def _queried(dependant: Dependant) -> set[str]:
    """The names in the query that a route and what it depends on look at."""
    return {param.alias for param in dependant.query_params}.union(*map(_queried, dependant.dependencies))


def counting(metrics: ServerMetrics, first: Callable[[Request], Awaitable[object]] | None = None) -> type[Route]:
    """The class of routes that count with these metrics, and of an act ask who comes before they read what is sent."""
    return type("CountedRoute", (Route,), {"metrics": metrics, "first": None if first is None else staticmethod(first)})


def template_of(request: Request) -> str:
    """The route's path below /api, without what was filled in; the same wherever it is mounted."""
    template: str = getattr(request.scope.get("route"), "path_format", "?")
    return "/api" + template.rpartition("/api")[2]


async def _answered(
    handle: Callable[[Request], Coroutine[Any, Any, Response]],
    request: Request,
    first: Callable[[Request], Awaitable[object]] | None,
) -> Response:
    try:
        if first is not None and request.method not in SAFE:
            await first(request)
        return await handle(request)
    except RequestValidationError as exc:
        kind = request.headers.get("content-type", "")
        unread = request.method not in SAFE and "json" not in kind.lower() and request.headers.get("content-length", "0") != "0"
        return problems.of_validation(exc, hint="send it with Content-Type: application/json" if unread else None)
    except StarletteHTTPException as exc:
        return problems.of_http(exc)
    except (HarvestError, SqlError) as exc:
        return problems.response_of(exc)
    except RecursionError:
        return problems.problem_response(problems.problem(400, "RequestInvalid", "what was sent is nested too deeply"))
    except TimeoutError as exc:
        return problems.problem_response(problems.problem(504, "NoAnswer", str(exc) or "there was no answer in time"))
    except Exception as exc:
        return problems.of_bug(exc)


async def audited(request: Request, who: Principal, auditor: Auditor) -> None:
    """Stores who is about to do what; nothing is done before."""
    target: dict[str, Any] = dict(request.path_params)
    try:
        body = json.loads(await request.body() or b"null")
    except (ValueError, RecursionError):
        body = None
    if isinstance(body, dict):
        target |= {k: v[:600] if isinstance(v, str) else v for k in NAMED if isinstance(v := body.get(k), (str, bool))}
        filters = body.get("filters")
        if isinstance(filters, dict):  # which runs a bulk act was about; of search attributes only their names
            target |= {f"filter_{k}": v[:600] for k in FILTERS if isinstance(v := filters.get(k), str)}
            attributes = filters.get("search_attributes")
            target |= {"filter_attributes": ", ".join(attributes)[:600]} if isinstance(attributes, dict) else {}
    audit_id = await auditor.begin(
        actor=who.name,
        token_id=who.token_id,
        address=request.client.host if request.client else None,
        method=request.method,
        route=template_of(request),
        target={name: value if isinstance(value, bool) else clean(str(value)[:600]) for name, value in target.items()},
    )
    request.state.harvest_deed = (auditor, audit_id)


def clean(text: str) -> str:
    """A text that Postgres can hold."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def in_path(request: Request, value: str, parameter: str, marker: str, skip: int = 0) -> str:
    """An id in the path, whose own slashes come as %2F.

    `marker` is a fixed segment that stands `skip` segments before it. A path that was taken for something else than it says
    (an id that ends like another route, a slash that was not encoded) is refused, so that nobody acts on what was not meant.
    Raises 404.
    """
    raw = request.scope.get("raw_path")
    template = getattr(request.scope.get("route"), "path_format", "")
    if raw is None or not template:
        return value
    after = template.rpartition(f"{{{parameter}}}")[2].count("/")
    parts = raw.decode("latin-1").partition("?")[0].split("/")
    starts = [n + 1 + skip for n, part in enumerate(parts) if part == marker]
    if any(start == len(parts) - after - 1 and unquote(parts[start]) == value for start in starts):
        return value
    raise HTTPException(
        404, "no route; a slash in an id is sent as %2F, and a run whose id ends like a route has its execution id"
    )
