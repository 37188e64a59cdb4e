"""One run: what can be asked of it and done to it.

Two families with the same routes: `/workflows/{execution_id}` for an execution, whose acts go to its live attempt, and
`/workflows/by-id/{workflow_id}` for the open (or newest) run of a workflow id.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Header, HTTPException, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from harvest.client import WorkflowHandle
from harvest.client.plain import plain
from harvest.errors import NoAnswer, WorkflowNotFound
from harvest.ids import new_id
from harvest.server import models
from harvest.server.access import Principal
from harvest.server.api.collection import NONE, json_or_text
from harvest.server.desk import PROBLEMS, Desk
from harvest.server.problems import RETRY_AFTER
from harvest.server.routing import in_path
from harvest.server.sse import COMMENT, STREAM, event_of, stream_response

Handle = WorkflowHandle[Any]
Address = Callable[..., Any]
Wait = Annotated[str, Query(pattern=r"^[0-9]{1,5}(\.[0-9]{1,3})?(ms|s|m)?$", description="how long to wait, as 5s or 500ms")]
Name = Annotated[str, Path(min_length=1, max_length=200, pattern=r"^[^\x00/@][^\x00/]*$")]
UpdateId = Annotated[str, Path(min_length=1, max_length=900, pattern=r"^[^\x00/]+$")]
Seq = Annotated[int, Path(ge=1, lt=2**31)]
LAST = r"^([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}:)?[0-9]{1,9}$"
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "": 1.0}


def wait_of(text: str) -> float:
    """Seconds of `5s`, `500ms`, `1m` or a plain number."""
    number, unit = re.fullmatch(r"([0-9.]+)(ms|s|m)?", text).groups("")  # type: ignore[union-attr]
    return float(number) * UNITS[unit]


def by_execution(desk: Desk) -> Address:
    async def address(execution_id: UUID) -> Handle:
        return await desk.client.find(execution_id)

    return address


def by_id(desk: Desk) -> Address:
    async def address(
        request: Request,
        workflow_id: Annotated[str, Path(min_length=1, pattern=r"^[^\x00]+$", description="slashes as %2F")],
    ) -> Handle:
        return desk.client.handle(in_path(request, workflow_id, "workflow_id", "by-id"))

    return address


def routes(desk: Desk, address: Address, prefix: str, family: str) -> APIRouter:
    """The routes of one family; `address` is the dependency that gives the handle."""
    router = APIRouter(
        prefix=prefix,
        route_class=desk.route,
        responses=PROBLEMS,
        tags=[family],
        generate_unique_id_function=lambda route: f"{route.name}_{family.replace(' ', '_')}",
    )
    talking(router, desk, address)
    updating(router, desk, address)
    acting(router, desk, address)
    looking(router, desk, address)
    caring(router, desk, address)
    streaming(router, desk, address)
    describing(router, desk, address)
    router.routes.sort(key=lambda route: -getattr(route, "path", "").count("/"))  # an id may take what stands before
    return router


def talking(router: APIRouter, desk: Desk, address: Address) -> None:
    Run = Annotated[Handle, Depends(address)]
    read, operate = desk.needs("read"), desk.needs("operate", mutates=True)

    @router.get(
        "/result", dependencies=[read], response_model=models.Snapshot, responses={204: {"description": "It is still running"}}
    )
    async def result(run: Run, wait: Wait = "0") -> Any:
        """The end of the logical run: its state, with result or failure. 204 while it runs."""
        found = await run.result_snapshot(wait=desk.patience(wait_of(wait)))
        if found.state in ("RUNNING", "PAUSED"):
            return Response(status_code=204, headers={"Retry-After": str(RETRY_AFTER)})
        return plain(found)

    @router.post("/signal/{name}", dependencies=[operate], response_model=models.Signalled, response_model_exclude_none=True)
    async def signal(run: Run, name: Name, body: models.Signal | None = None) -> Any:
        """Returns once the signal is durable. A key is delivered once per logical run."""
        body = body or models.Signal()
        done = await run.signal(name, *body.args, idempotency_key=body.idempotency_key)
        desk.changed(run.id)
        return plain(done)

    @router.get("/query/{name}", dependencies=[read], response_model=models.Answer)
    async def query(
        run: Run,
        name: Name,
        arg: Annotated[list[str], Query(max_length=100, description="arguments: JSON, or what is not JSON as text")] = NONE,
        timeout: models.AskedFor = 10.0,
    ) -> Any:
        """Asks the run, open or closed; it changes nothing."""
        return {"result": await run.query(name, *map(json_or_text, arg), timeout=desk.patience(timeout))}

    @router.post("/query/{name}", dependencies=[read], response_model=models.Answer)
    async def query_with_body(run: Run, name: Name, body: models.Query | None = None) -> Any:
        """The same, with the arguments in the body."""
        body = body or models.Query()
        return {"result": await run.query(name, *body.args, timeout=desk.patience(body.timeout))}


def updating(router: APIRouter, desk: Desk, address: Address) -> None:
    Run = Annotated[Handle, Depends(address)]

    @router.post(
        "/update/{name}",
        dependencies=[desk.needs("operate", mutates=True)],
        response_model=models.Updated,
        responses={202: {"model": models.Updated, "description": "It is durable, and has no result yet"}},
    )
    async def update(run: Run, name: Name, response: Response, body: models.Update | None = None) -> Any:
        """Validates and runs the handler once per `update_id`. With `wait` admitted it returns once the update is durable."""
        body = body or models.Update()
        update_id = body.update_id or str(new_id())
        admitted = {"update_id": update_id, "state": "admitted"}
        if body.wait == "admitted":
            await run.start_update(name, *body.args, update_id=update_id)
        else:
            try:
                result = await run.update(name, *body.args, update_id=update_id, timeout=desk.patience(body.timeout))
                return {"update_id": update_id, "state": "completed", "result": result}
            except NoAnswer:
                pass
        desk.changed(run.id)
        response.status_code = 202
        return admitted

    @router.get(
        "/update/{update_id}/result",
        dependencies=[desk.needs("read")],
        response_model=models.Updated,
        responses={204: {"description": "It has no result yet"}},
    )
    async def update_result(run: Run, update_id: UpdateId, wait: Wait = "0") -> Any:
        """The result of an update by its id, whichever attempt has it. 204 while there is none."""
        try:
            found = await run.update_result(update_id, timeout=desk.patience(wait_of(wait)) or 0.001)
        except NoAnswer:
            return Response(status_code=204, headers={"Retry-After": str(RETRY_AFTER)})
        return {"update_id": update_id, "state": "completed", "result": found}


def acting(router: APIRouter, desk: Desk, address: Address) -> None:
    Run = Annotated[Handle, Depends(address)]
    operate = desk.needs("operate", mutates=True)
    stored: dict[int | str, dict[str, Any]] = {202: {"model": models.Acted, "description": "Stored; no worker has done it yet"}}

    def acted(run: Handle, execution_id: UUID | None, response: Response, *, done: bool = True) -> dict[str, Any]:
        desk.changed(run.id)
        response.status_code = 200 if done else 202
        return {"workflow_id": run.id, "execution_id": execution_id, "done": done}

    @router.post("/cancel", dependencies=[operate], response_model=models.Acted)
    async def cancel(run: Run, response: Response, body: models.Reason | None = None) -> Any:
        """Asks it to cancel. A retry that is queued does not begin then."""
        return acted(run, await run.cancel((body or models.Reason()).reason), response)

    @router.post("/terminate", dependencies=[operate], response_model=models.Acted, responses=stored)
    async def terminate(run: Run, response: Response, body: models.Terminate | None = None) -> Any:
        """Ends it without asking its code."""
        body = body or models.Terminate()
        try:
            return acted(run, await run.terminate(body.reason, timeout=desk.patience(body.timeout)), response)
        except NoAnswer:
            return acted(run, None, response, done=False)

    @router.post("/pause", dependencies=[operate], response_model=models.Acted, responses=stored)
    async def pause(run: Run, response: Response, body: models.Pause | None = None) -> Any:
        """Has it stand still, until it is resumed or terminated."""
        try:
            return acted(run, await run.pause(timeout=desk.patience((body or models.Pause()).timeout)), response)
        except NoAnswer:
            return acted(run, None, response, done=False)

    @router.post("/resume", dependencies=[operate], response_model=models.Acted)
    async def resume(run: Run, response: Response) -> Any:
        """Has a paused run go on; one that is not paused just does."""
        return acted(run, await run.resume(), response)

    @router.post("/reset", dependencies=[operate], status_code=201, response_model=models.Started)
    async def reset(run: Run, body: models.Reset | None = None) -> Any:
        """Forks this execution from the end of a decision; an open run is terminated."""
        body = body or models.Reset()
        new = await run.reset(body.decision, signals=body.signals, reason=body.reason, timeout=desk.patience(body.timeout))
        desk.changed(run.id)
        return {"workflow_id": new.id, "execution_id": new.execution_id}

    @router.post("/rerun", dependencies=[operate], status_code=201, response_model=models.Started)
    async def rerun(run: Run, body: models.Rerun | None = None) -> Any:
        """Starts a new logical run from the input of this execution. An attempt that was retried is refused."""
        new = await run.rerun(id=(body or models.Rerun()).id)
        desk.changed(new.id)
        return {"workflow_id": new.id, "execution_id": new.execution_id}

    @router.post("/activities/{seq}/retry-now", dependencies=[operate], status_code=204)
    async def retry_activity(run: Run, seq: Seq) -> None:
        """Tries a waiting activity now, whatever its back-off."""
        await run.retry_activity(seq)
        desk.changed(run.id)

    @router.post("/activities/{seq}/fail-now", dependencies=[operate], status_code=204)
    async def fail_activity(run: Run, seq: Seq, body: models.FailActivity | None = None) -> None:
        """Ends an activity as failed; it is not retried."""
        await run.fail_activity(seq, (body or models.FailActivity()).reason)
        desk.changed(run.id)


def looking(router: APIRouter, desk: Desk, address: Address) -> None:
    Run = Annotated[Handle, Depends(address)]
    read = desk.needs("read")
    Timeout = Annotated[models.AskedFor, Query()]

    @router.get("/history", dependencies=[read], response_model=models.EventPage, response_model_exclude_none=False)
    async def history(
        run: Run,
        after: Annotated[int, Query(ge=0, lt=2**31)] = 0,
        limit: Annotated[int, Query(ge=1, le=5000)] = 500,
    ) -> Any:
        """Events in order, those after the event `after`."""
        await run.describe()
        events = []
        async for event in run.history(after=after, page=limit):
            events.append(plain(event))
            if len(events) == limit:
                break
        return {"events": events, "next": events[-1]["event_id"] if len(events) == limit else None}

    @router.get(
        "/history/export", dependencies=[read], response_class=Response, responses={200: {"content": {"application/json": {}}}}
    )
    async def export(run: Run) -> Response:
        """The run as JSON that `harvest replay` reads."""
        return Response(await run.export_history(), media_type="application/json")

    @router.get("/timeline", dependencies=[read], response_model=list[models.Stretch])
    async def timeline(run: Run) -> Any:
        """Its history as spans with beginning and end."""
        return plain(await run.timeline())

    @router.get("/stack", dependencies=[read], response_model=list[models.TaskStack])
    async def stack(run: Run, timeout: Timeout = 10.0) -> Any:
        """Where its coroutines stand; empty for a closed run."""
        return plain(await run.stack(timeout=desk.patience(timeout)))

    @router.get("/awaitables", dependencies=[read], response_model=list[models.Awaitable])
    async def awaitables(run: Run, timeout: Timeout = 10.0) -> Any:
        """What it can be woken by; empty for a closed run."""
        return plain(await run.awaitables(timeout=desk.patience(timeout)))

    @router.get("/diagnose", dependencies=[read], response_model=models.Diagnosis)
    async def diagnose(run: Run) -> Any:
        """Why it is not moving, and the command that mends it."""
        return plain(await run.diagnose())

    @router.get("/run-chain", dependencies=[read], response_model=list[models.Link])
    async def run_chain(run: Run) -> Any:
        """All runs that belong together, oldest first: attempts, continuations, resets and reruns."""
        return plain(await run.chain())

    @router.get("/sticky-report", dependencies=[read], response_model=models.StickyReport)
    async def sticky_report(run: Run) -> Any:
        """Where each decision was taken, by whom, and which windows timed out."""
        return plain(await desk.client.sticky_report(run.id, run.execution_id))

    @router.get("/triage", dependencies=[read], response_model=list[models.Triaged])
    async def triage_notes(run: Run) -> Any:
        return plain(await run.triage_notes())


def caring(router: APIRouter, desk: Desk, address: Address) -> None:
    Run = Annotated[Handle, Depends(address)]
    admin, operate = desk.needs("admin", mutates=True), desk.needs("operate", mutates=True)

    @router.put("/legal-hold", dependencies=[admin], status_code=204)
    async def hold(run: Run, body: models.Hold, who: Annotated[Any, Depends(desk.auth)]) -> None:
        """Keeps this execution from being erased."""
        await run.hold(body.reason, author=who.name)

    @router.delete("/legal-hold", dependencies=[admin], status_code=204)
    async def lift_hold(run: Run) -> None:
        await run.lift_hold()

    @router.post("/erase-payloads", dependencies=[admin], response_model=models.Erased)
    async def erase(run: Run) -> Any:
        """Overwrites every payload of this closed execution, for good."""
        return {"decisions": await run.erase()}

    @router.post("/triage", dependencies=[operate], status_code=204)
    async def triage(run: Run, body: models.TriageNote, who: Annotated[Any, Depends(desk.auth)]) -> None:
        """Adds a post-mortem note."""
        await run.triage(body.note, status=body.status, author=who.name)


def streaming(router: APIRouter, desk: Desk, address: Address) -> None:
    Run = Annotated[Handle, Depends(address)]

    @router.get(
        "/events",
        dependencies=[desk.needs("read")],
        response_class=StreamingResponse,
        responses={200: STREAM, 204: {"description": "It is closed, and every event was seen"}},
    )
    async def events(
        run: Run,
        request: Request,
        last_event_id: Annotated[str | None, Header(pattern=LAST, description="the last event that was seen")] = None,
    ) -> Response:
        """The events of this execution as they are recorded (server-sent events); `end` follows the last one.

        After a break go on with `Last-Event-ID`. By id it is about the newest run, or about the one of `Last-Event-ID` while
        that has more to tell. A stream may end without `end`: come again.
        """
        described, seen = await run.describe(), 0
        of, _, number = (last_event_id or "0").rpartition(":")
        if not of or UUID(of) == described.execution_id:
            seen = int(number)
        elif run.execution_id is not None:
            raise HTTPException(400, f"Last-Event-ID is of execution {of}, and this one is {run.execution_id}")
        else:
            before = await _of_id(desk, run.id, UUID(of))
            if before is not None and (before.closed_at is None or int(number) < before.events):
                described, seen = before, int(number)
        if described.closed_at is not None and seen >= described.events:
            return Response(status_code=204)
        pinned = desk.client.handle(run.id, execution_id=described.execution_id)
        events = _follow(desk, request.state.harvest_who, pinned, described.execution_id, seen)
        return stream_response(events, desk.longest_stream)


async def _of_id(desk: Desk, workflow_id: str, execution_id: UUID) -> Any:
    """An earlier run of the id; None where there is none, or none any more."""
    try:
        return await desk.client.handle(workflow_id, execution_id=execution_id).describe()
    except WorkflowNotFound:
        return None


async def _follow(desk: Desk, who: Principal, run: Handle, execution_id: UUID, seen: int) -> AsyncIterator[str]:
    """Reads what is new whenever the run is said to have moved, and never in between; ends for who may not look any more."""
    async with desk.watch.following(execution_id) as changes:
        yield COMMENT
        while True:
            moved = changes.arm()
            if not await desk.still(who):
                return
            closed = (await run.describe()).closed_at is not None
            async for event in run.history(after=seen):
                seen = event["event_id"]
                yield event_of(event["type"], plain(event), id=f"{execution_id}:{seen}")
            if desk.watch.ending:
                return
            if closed:
                yield event_of("end", {"execution_id": str(execution_id)})
                return
            while not moved.done():
                await asyncio.wait({moved}, timeout=15)
                if not moved.done():
                    if not await desk.still(who):
                        return
                    yield COMMENT


def describing(router: APIRouter, desk: Desk, address: Address) -> None:
    Run = Annotated[Handle, Depends(address)]

    @router.get("", dependencies=[desk.needs("read")], response_model=models.Description)
    async def describe(run: Run) -> Any:
        """One execution in full: the one addressed, else the newest of the workflow id."""
        return plain(await run.describe())
