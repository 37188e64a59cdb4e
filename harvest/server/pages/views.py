"""What each page shows. Reads go through `desk.shared`, so that many viewers of the same thing cost the hub as much as one."""

import asyncio
import logging
from collections.abc import Awaitable
from datetime import UTC, datetime
from importlib.resources import files
from typing import Annotated, Any
from urllib.parse import urlencode
from uuid import UUID

from fastapi import APIRouter, HTTPException, Query, Request, Response

from harvest.client import WorkflowHandle
from harvest.client.client import STATES
from harvest.client.plain import plain
from harvest.entity_sql import Limits
from harvest.errors import ConfigError, HubError, NoAnswer, PayloadError, QueryFailed, QueryTimeout
from harvest.server.access import Access, Principal
from harvest.server.api.collection import json_or_text
from harvest.server.desk import Desk, cursor_key, cursor_place, cursor_text
from harvest.server.pages.charts import plot, timeline
from harvest.server.pages.page import Page
from harvest.server.pages.render import html
from harvest.server.pages.session import session

log = logging.getLogger("harvest.server")
PER_PAGE = 50
EVENTS_SHOWN = 200
ASK = 1.5
"""Seconds that a page waits for a worker to say where a run stands."""
STALE = 3.0
"""Seconds that what is known of one run may be behind: a page looks again a little later than that."""
STATIC = {"app.css": "text/css; charset=utf-8", "app.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml"}
Text = Annotated[str, Query(max_length=1000, pattern=r"^[^\x00]*$")]


def pages(desk: Desk, access: Access | None) -> APIRouter:
    """`access` where the dashboard has its own sign-in; an application that mounts it brings its own."""
    router = APIRouter(include_in_schema=False)
    router.include_router(_static())
    if access is not None:
        router.include_router(session(access))
    shown = APIRouter(route_class=Page, dependencies=[desk.needs("read")])
    runs(shown, desk)
    run(shown, desk)
    entities(shown, desk)
    fleet(shown, desk)
    router.include_router(shown)
    return router


def _static() -> APIRouter:
    router = APIRouter()
    loaded = {name: (files("harvest.server.pages") / "static" / name).read_bytes() for name in STATIC}

    @router.get("/static/{name}")
    async def static(name: str) -> Response:
        if name not in loaded:
            raise HTTPException(404)
        return Response(loaded[name], media_type=STATIC[name], headers={"Cache-Control": "max-age=300"})

    return router


# --- runs


def runs(router: APIRouter, desk: Desk) -> None:
    client, shared = desk.client, desk.shared

    @router.get("/")
    async def list_of_runs(
        request: Request,
        q: Text = "",
        type: Text = "",
        state: Text = "",
        queue: Text = "",
        attribute: Text = "",
        cursor: Text = "",
    ) -> Response:
        filters: dict[str, Any] = {"prefix": q or None, "type": type or None, "queue": queue or None, "state": state or None}
        if "=" in attribute:
            name, _, value = attribute.partition("=")
            filters["search_attributes"] = {name: json_or_text(value)}
        key = ("runs", q, type, state, queue, attribute, cursor)
        problem, found = "", []
        try:
            found = await shared.get(key, lambda: _page_of_runs(desk, filters, cursor))
        except (ConfigError, PayloadError) as exc:
            problem = exc.message
        counts = await shared.get(("counts", type or None, False), lambda: client.counts(type or None))
        known = await shared.get("types", lambda: _known_types(desk), 5.0)
        last = found[-1] if len(found) == PER_PAGE else None
        chosen = {"q": q, "type": type, "state": state, "queue": queue, "attribute": attribute}
        more = urlencode({**chosen, "cursor": cursor_text(last.created_at, last.execution_id)}) if last else ""
        return html(
            request,
            "runs.html",
            "/",
            runs=found,
            counts=counts,
            states=STATES,
            chosen=chosen,
            cursor=cursor,
            more=more,
            types=known,
            problem=problem,
        )


async def _page_of_runs(desk: Desk, filters: dict[str, Any], cursor: str) -> list[Any]:
    place = cursor_place(cursor or None)
    return [run async for run in desk.client.list(**filters, cursor=place, limit=PER_PAGE, page=PER_PAGE)]


async def _known_types(desk: Desk) -> list[str]:
    """Types of workflows that some living worker runs."""
    names = {name for w in (await desk.client.owner_status()).workers for name in w.workflows}
    return sorted(names)


# --- one run


def run(router: APIRouter, desk: Desk) -> None:
    @router.get("/run")
    async def one_run(
        request: Request, id: Text, execution: Text = "", after: Annotated[int, Query(ge=0, lt=2**31)] = 0
    ) -> Response:
        execution_id = _uuid(execution)
        handle = desk.client.handle(id, execution_id=execution_id)
        found = await desk.shared.get(("run", id, execution, after), lambda: _all_of_run(handle, after), most=STALE)
        asked = await desk.shared.get(("stands", found["run"].execution_id), lambda: _where_it_stands(found), most=STALE)
        now = datetime.now(UTC)
        drawn = timeline(found["spans"], now)
        return html(
            request,
            "run.html",
            "/run",
            now=now,
            timeline=drawn,
            can=_possible(found["run"], request.state.harvest_who),
            after=after,
            **found,
            **asked,
        )


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text) if text else None
    except ValueError:
        raise HTTPException(404, f"{text[:50]!r} is not an execution id") from None


async def _all_of_run(handle: WorkflowHandle[Any], after: int) -> dict[str, Any]:
    described = await handle.describe()
    exact: WorkflowHandle[Any] = WorkflowHandle(handle._site, described.workflow_id, described.execution_id, None, pinned=True)
    open_ = described.closed_at is None
    chain, spans, events, notes = await asyncio.gather(
        exact.chain(limit=200), exact.timeline(), _events(exact, after), exact.triage_notes()
    )
    return {
        "exact": exact,
        "run": described,
        "live": open_,
        "chain": chain,
        "spans": spans,
        "events": events,
        "notes": notes,
        "more": events[-1]["event_id"] if len(events) == EVENTS_SHOWN else None,
    }


async def _where_it_stands(found: dict[str, Any]) -> dict[str, Any]:
    """What workers have to say of it. They may take their time: what the hub knows is no older for that."""
    exact, described = found["exact"], found["run"]
    stack = awaits = None
    if found["live"] and described.decisions:
        stack, awaits = await asyncio.gather(_asked(exact.stack(timeout=ASK)), _asked(exact.awaitables(timeout=ASK)))
    return {"stack": stack, "awaits": awaits, "diagnosis": await exact.diagnose()}


async def _asked(answer: Awaitable[Any]) -> Any:
    """None where no worker said it in time."""
    try:
        return await answer
    except (QueryTimeout, QueryFailed, NoAnswer, HubError):
        return None


async def _events(handle: WorkflowHandle[Any], after: int) -> list[dict[str, Any]]:
    found = []
    async for event in handle.history(after=after, page=EVENTS_SHOWN):
        found.append(event)
        if len(found) == EVENTS_SHOWN:
            break
    return found


def _possible(described: Any, who: Principal) -> dict[str, bool]:
    """Which actions make sense now, for somebody with these scopes."""
    open_ = described.closed_at is None
    entity = described.workflow_id.startswith("@")
    if not who.may("operate"):
        nothing = dict.fromkeys(("operate", "talk", "pause", "resume", "end", "reset", "rerun"), False)
        return {**nothing, "query": not entity and described.erased_at is None}
    return {
        "operate": True,
        "talk": open_ and not entity,
        "query": not entity and described.erased_at is None,
        "pause": open_ and described.state == "RUNNING" and not entity,
        "resume": described.state == "PAUSED",
        "end": open_ and not entity,
        "reset": not entity and described.decisions > 1 and described.erased_at is None,
        "rerun": not entity and described.retried_as is None and described.erased_at is None,
    }


# --- entities


def entities(router: APIRouter, desk: Desk) -> None:
    client, shared = desk.client, desk.shared

    @router.get("/entities")
    async def of_type(request: Request, type: Text = "", prefix: Text = "", cursor: Text = "") -> Response:
        types = await shared.get("entity types", client.entity_types)
        found: list[Any] = []
        if type:
            found = await shared.get(("entities", type, prefix, cursor), lambda: _page_of_entities(desk, type, prefix, cursor))
        last = found[-1] if len(found) == PER_PAGE else None
        more = urlencode({"type": type, "prefix": prefix, "cursor": cursor_text(last.key)}) if last else ""
        fields: list[str] = []
        if found:
            state = await _asked(client.entity(type, found[0].key, queue=found[0].queue).state(timeout=ASK))
            fields = sorted(state) if isinstance(state, dict) else []
        return html(
            request,
            "entities.html",
            "/entities",
            types=types,
            type=type,
            prefix=prefix,
            entities=found,
            more=more,
            fields=fields,
            limits=Limits(),
        )

    @router.get("/entity")
    async def one_entity(request: Request, type: Text, key: Text) -> Response:
        found = await shared.get(("entity", type, key), lambda: _all_of_entity(desk, type, key), most=STALE)
        return html(request, "entity.html", "/entity", type=type, key=key, limits=Limits(), **found)


async def _page_of_entities(desk: Desk, type: str, prefix: str, cursor: str) -> list[Any]:
    after = cursor_key(cursor or None)
    return [e async for e in desk.client.entities(type, prefix=prefix, after=after, limit=PER_PAGE, page=PER_PAGE)]


async def _all_of_entity(desk: Desk, type: str, key: str) -> dict[str, Any]:
    summary = await desk.client.entity(type, key).describe()
    handle = desk.client.entity(type, key, queue=summary.queue)
    state = await _asked(handle.state(timeout=ASK))
    runs = desk.client.handle(handle.id, execution_id=summary.execution_id)
    first = max(0, (await runs.describe()).events - EVENTS_SHOWN)
    events = await _events(runs, first)
    calls = [e for e in reversed(events) if e["type"].startswith("Operation")]
    fields = sorted(state) if isinstance(state, dict) else []
    return {
        "entity": summary,
        "state": plain(state),
        "known": state is not None,
        "calls": calls[:50],
        "fields": fields,
        "id": handle.id,
    }


# --- the fleet, and how it does


def fleet(router: APIRouter, desk: Desk) -> None:
    client, shared = desk.client, desk.shared

    @router.get("/fleet")
    async def who_owns_what(request: Request) -> Response:
        status = await shared.get("fleet", client.owner_status)
        failovers = await shared.get("failovers", client.failovers)
        findings = await shared.get("doctor", client.examine, 5.0)
        marks = {w.worker_id: n for n, w in enumerate(status.workers)}
        served = [p for p in status.pools if p.free < len(p.owners) or any(p.pool in w.pools for w in status.workers)]
        return html(
            request,
            "fleet.html",
            "/fleet",
            now=datetime.now(UTC),
            status=status,
            pools=served,
            marks=marks,
            failovers=failovers,
            findings=[f for f in findings if f.level != "ok"],
        )

    @router.get("/health")
    async def how_it_does(request: Request) -> Response:
        points = await shared.get("health", client.health, 5.0)
        sticky = await shared.get("sticky", client.sticky_figures, 5.0)
        return html(
            request, "health.html", "/health", plots=plots_of(points), sticky=sticky, last=points[-1] if points else None
        )


def plots_of(points: Any) -> list[Any]:
    """The last hour as plots."""

    def of_hub(name: str) -> list[float | None]:
        return [None if p.hub is None else p.hub.get(name) for p in points]

    def of_workers(name: str, key: str | None = None) -> list[float | None]:
        """A gap where nobody counted, which is no fall to nothing."""
        values = [getattr(p, name) for p in points]
        return [None if not p.workers else v if key is None else v.get(key, 0.0) for p, v in zip(points, values, strict=True)]

    def ms(name: str, n: int) -> list[float | None]:
        return [None if (v := getattr(p, name)[n]) is None else v * 1e3 for p in points]

    modes = [m for m in ("warm", "first", "disk", "cold", "forced", "blocked", "engine") if any(m in p.modes for p in points)]
    ends = sorted({state for p in points for state in p.closed})
    return [
        plot(
            "Throughput",
            "per s",
            [("decisions", of_workers("decisions")), ("commits", of_workers("commits"))],
        ),
        plot("Runs that ended", "per s", [(s.lower(), of_workers("closed", s)) for s in ends]),
        plot("Commit batch", "decisions", [("size", [p.batch for p in points])]),
        plot("Commit latency", "ms", [("p50", ms("commit", 0)), ("p95", ms("commit", 1))]),
        plot(
            "Schedule to start of activities", "ms", [("p50", ms("schedule_to_start", 0)), ("p95", ms("schedule_to_start", 1))]
        ),
        plot("Decisions waiting for their turn", "ms", [("p50", ms("wait", 0)), ("p95", ms("wait", 1))]),
        plot("Replay modes", "per s", [(m, of_workers("modes", m)) for m in modes]),
        plot("Backlog", "tasks", [("decisions", of_hub("workflow_backlog")), ("activities", of_hub("activity_backlog"))]),
        plot("Open runs", "runs", [("open", of_hub("open_runs"))]),
        plot("Dead letters", "runs", [("parked", of_hub("dead_letters"))]),
    ]
