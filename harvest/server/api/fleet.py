"""The fleet and the hub: workers, partitions, the owner switch, figures, the audit, and the stream of changes."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse

from harvest.client.plain import plain
from harvest.operations.watch import News
from harvest.server import models
from harvest.server.access import Principal
from harvest.server.api.collection import Cursor, Limit, Name
from harvest.server.desk import PROBLEMS, Desk, cursor_place, cursor_text
from harvest.server.metrics import CONTENT_TYPE
from harvest.server.problems import problem, problem_response
from harvest.server.sse import COMMENT, STREAM, event_of, stream_response

GATHER = 0.1
"""Seconds in which news is gathered into one event."""


def routes(desk: Desk, prefix: str) -> APIRouter:
    router = APIRouter(prefix=prefix, route_class=desk.route, responses=PROBLEMS, tags=["fleet"])
    who_is_there(router, desk)
    switching(router, desk)
    records(router, desk)
    changes(router, desk)
    return router


def who_is_there(router: APIRouter, desk: Desk) -> None:
    read, client, shared = desk.needs("read"), desk.client, desk.shared

    @router.get("/workers", dependencies=[read], response_model=list[models.Worker])
    async def workers() -> Any:
        """Workers whose lease holds, oldest first, each with its effective settings and the figures of its cache."""
        return plain((await shared.get("fleet", client.owner_status)).workers)

    @router.get("/workers/{worker_id:uuid}", dependencies=[read], response_model=models.Worker)
    async def worker(worker_id: UUID) -> Any:
        found = [w for w in (await shared.get("fleet", client.owner_status)).workers if w.worker_id == worker_id]
        if not found:
            return problem_response(problem(404, "WorkerNotFound", f"no living worker has the id {worker_id}"))
        return plain(found[0])

    @router.get("/partitions", dependencies=[read], response_model=models.Ownership)
    async def partitions(queue: Name | None = None) -> Any:
        """Who owns which partition, and who is alive."""
        return plain(await client.owner_status(queue))

    @router.get("/failovers", dependencies=[read], response_model=list[models.Failover])
    async def failovers(limit: Limit = 20) -> Any:
        """Workers that died, and how long it took until others had their partitions; newest first."""
        return plain(await client.failovers(limit=limit))

    @router.get("/sticky-figures", dependencies=[read], response_model=dict[str, float])
    async def sticky_figures() -> Any:
        """The figures of sticky execution over the whole hub."""
        return await shared.get("sticky", client.sticky_figures)

    @router.get("/health", dependencies=[read], response_model=list[models.HealthPoint])
    async def health() -> Any:
        """The last hour in steps of 30 s: throughput, commits, waits, replay modes, what the hub held."""
        return plain(await shared.get("health", client.health, 5.0))

    @router.get("/doctor", dependencies=[read], response_model=list[models.Finding])
    async def doctor() -> Any:
        """What is wrong with the hub or its fleet, worst first."""
        return plain(await client.examine())

    @router.get(
        "/metrics",
        dependencies=[read],
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def metrics() -> Response:
        """What the server counts and what it knows of the hub, as Prometheus reads it."""
        return Response(await desk.metrics.text(), media_type=CONTENT_TYPE)

    @router.get("/me", dependencies=[read], response_model=models.Me)
    async def me(who: Annotated[Any, Depends(desk.auth)]) -> Any:
        """Who this request was made by."""
        return {"name": who.name, "scopes": [s for s in ("read", "operate", "admin", "sql") if who.may(s)], "via": who.via}


def switching(router: APIRouter, desk: Desk) -> None:
    admin, client = desk.needs("admin", mutates=True), desk.client

    @router.post("/owner-mode/enable", dependencies=[admin], response_model=models.Switched)
    async def enable() -> Any:
        """Gives each run one owner. Refused with the reasons where the fleet is not ready."""
        found = await client.enable_owner_mode()
        return {"mode": found.mode, "changed": found.changed}

    @router.post("/owner-mode/disable", dependencies=[admin], response_model=models.Switched)
    async def disable() -> Any:
        """Puts the hub on the sticky claim loop."""
        found = await client.disable_owner_mode()
        return {"mode": found.mode, "changed": found.changed}


def records(router: APIRouter, desk: Desk) -> None:
    @router.get("/audit", dependencies=[desk.needs("admin")], response_model=models.AuditPage)
    async def audit(
        actor: Name | None = None,
        workflow_id: Annotated[str | None, Query(min_length=1, max_length=512, pattern=r"^[^\x00]+$")] = None,
        limit: Limit = 100,
        cursor: Cursor | None = None,
    ) -> Any:
        """Mutating calls, newest first: who, what, on which run, with which status."""
        await desk.auditor.flush()
        found = await desk.client.audit(actor=actor, workflow_id=workflow_id, cursor=cursor_place(cursor), limit=limit)
        last = found[-1] if len(found) == limit else None
        return {"entries": plain(found), "next": last and cursor_text(last.at, last.audit_id)}


def changes(router: APIRouter, desk: Desk) -> None:
    @router.get("/changes", dependencies=[desk.needs("read")], response_class=StreamingResponse, responses={200: STREAM})
    async def stream(request: Request) -> Response:
        """What changes, as it changes (server-sent events): `runs` with those that moved, `fleet`, `figures`.

        A hint, like everything that comes by NOTIFY: `more` in `runs` says that others have moved, too.
        """
        return stream_response(_news(desk, request.state.harvest_who), desk.longest_stream)


async def _news(desk: Desk, who: Principal) -> AsyncIterator[str]:
    async with desk.watch.news() as queue:
        yield event_of("hello", {})
        while not desk.watch.ending:
            try:
                gathered = [await asyncio.wait_for(queue.get(), 15)]
            except TimeoutError:
                gathered = []
            if not await desk.still(who):
                return
            if not gathered:
                yield COMMENT
                continue
            await asyncio.sleep(GATHER)
            while not queue.empty():
                gathered.append(queue.get_nowait())
            for text in _events(gathered):
                yield text


def _events(news: list[News]) -> list[str]:
    runs = {run.execution_id: plain(run) for each in news for run in each.runs}
    more = any(each.more for each in news)
    found = [event_of("runs", {"runs": [*runs.values()], "more": more})] if runs or more else []
    found += [event_of("fleet", {})] if any(each.fleet for each in news) else []
    return found + ([event_of("figures", {})] if any(each.figures for each in news) else [])
