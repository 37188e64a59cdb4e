"""All runs: start, list, count, bulk acts; and the dead letters."""

import asyncio
import json
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Response
from pydantic import Field

from harvest.client.plain import plain
from harvest.definitions.options import RetryPolicy
from harvest.errors import NoAnswer
from harvest.ids import new_id
from harvest.server import models
from harvest.server.desk import PROBLEMS, Desk, cursor_place, cursor_text

Name = Annotated[str, Query(min_length=1, max_length=200, pattern=r"^[^\x00]+$")]
Prefix = Annotated[str, Query(min_length=1, max_length=512, pattern=r"^[^\x00]+$", description="of the workflow id")]
Attribute = Annotated[str, Field(max_length=1000, pattern=r"^[^=\x00]+=[^\x00]*$")]
Limit = Annotated[int, Query(ge=1, le=1000)]
Cursor = Annotated[str, Query(max_length=2000, description="`next` of the page before")]
START_FIELDS = ("queue", "reuse", "priority", "timeout", "chain_timeout", "delay", "build_id", "memo", "search_attributes")


NONE: Any = []


def json_or_text(text: str) -> Any:
    """JSON where it is JSON, else the text itself, as on the command line."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def options_of(body: models.Start) -> dict[str, Any]:
    """The options of `client.start`, those that were given."""
    given = {name: value for name in START_FIELDS if (value := getattr(body, name)) is not None}
    if body.conflict is not None:
        given["conflict"] = body.conflict
    if body.retry is not None:
        fields = body.retry.model_dump()
        given["retry"] = RetryPolicy(**{**fields, "non_retryable": tuple(fields["non_retryable"])})
    return given


def routes(desk: Desk, prefix: str) -> APIRouter:
    router = APIRouter(prefix=prefix, route_class=desk.route, responses=PROBLEMS)
    starting(router, desk)
    in_bulk(router, desk)
    listing(router, desk)
    letters(router, desk)
    return router


def starting(router: APIRouter, desk: Desk) -> None:
    operate = desk.needs("operate", mutates=True)
    client = desk.client

    def started(handle: Any) -> dict[str, Any]:
        desk.changed(handle.id)
        return {"workflow_id": handle.id, "execution_id": handle.execution_id}

    @router.post("/workflows", tags=["runs"], dependencies=[operate], status_code=201, response_model=models.Started)
    async def start(body: models.Start) -> Any:
        """Starts a run; it is durable then. An id that is taken is refused unless `conflict` says otherwise."""
        async with asyncio.timeout(desk.max_wait):  # terminate_existing waits for a worker
            return started(await client.start(body.type, *body.args, id=body.id, **options_of(body)))

    @router.post(
        "/workflows/signal-with-start", tags=["runs"], dependencies=[operate], status_code=201, response_model=models.Started
    )
    async def signal_with_start(body: models.SignalWithStart) -> Any:
        """Signals the open run of this id, or starts one with the signal: one transaction either way."""
        async with asyncio.timeout(desk.max_wait):
            return started(
                await client.signal_with_start(
                    body.type,
                    *body.args,
                    id=body.id,
                    signal=body.signal,
                    signal_args=tuple(body.signal_args),
                    **options_of(body),
                )
            )

    @router.post(
        "/workflows/update-with-start",
        tags=["runs"],
        dependencies=[operate],
        response_model=models.Updated,
        responses={202: {"model": models.Updated, "description": "Both are durable; the update has no result yet"}},
    )
    async def update_with_start(body: models.UpdateWithStart, response: Response) -> Any:
        """Starts the run if none is open, then updates it and returns the update's result."""
        update_id = body.update_id or str(new_id())
        try:
            async with asyncio.timeout(
                desk.max_wait + desk.patience(body.update_timeout)
            ):  # a run that is ended first, then the update
                result = await client.update_with_start(
                    body.type,
                    *body.args,
                    id=body.id,
                    update=body.update,
                    update_args=tuple(body.update_args),
                    update_id=update_id,
                    update_timeout=desk.patience(body.update_timeout),
                    **options_of(body),
                )
        except NoAnswer:
            desk.changed(body.id)
            response.status_code = 202
            return {"update_id": update_id, "state": "admitted"}
        desk.changed(body.id)
        return {"update_id": update_id, "state": "completed", "result": result}


def in_bulk(router: APIRouter, desk: Desk) -> None:
    @router.post(
        "/workflows/bulk", tags=["runs"], dependencies=[desk.needs("operate", mutates=True)], response_model=models.BulkReport
    )
    async def bulk(body: models.Bulk) -> Any:
        """One act on all open runs that match: a dry run unless told otherwise."""
        filters = {name: value for name, value in body.filters.model_dump().items() if value is not None}
        report = await desk.client.bulk(
            body.verb,
            signal=body.signal,
            args=tuple(body.args),
            reason=body.reason,
            everything=body.everything,
            dry_run=body.dry_run,
            limit=body.limit,
            timeout=desk.patience(body.timeout),
            **filters,
        )
        if not body.dry_run:
            desk.changed("")
        return plain(report)


def listing(router: APIRouter, desk: Desk) -> None:
    read, client = desk.needs("read"), desk.client

    @router.get("/workflows", tags=["runs"], dependencies=[read], response_model=models.RunPage)
    async def list_runs(
        state: models.State | None = None,
        type: Name | None = None,
        queue: Name | None = None,
        prefix: Prefix | None = None,
        attribute: Annotated[list[Attribute], Query(max_length=20, description="search attributes, as name=value")] = NONE,
        after: Annotated[models.Moment | None, Query(description="created at or after")] = None,
        before: Annotated[models.Moment | None, Query(description="created before")] = None,
        entities: Annotated[bool, Query(description="with those of entities")] = False,
        limit: Limit = 100,
        cursor: Cursor | None = None,
    ) -> Any:
        """Runs, newest first."""
        found = [
            run
            async for run in client.list(
                state=state,
                type=type,
                queue=queue,
                prefix=prefix,
                search_attributes={name: json_or_text(value) for name, _, value in (a.partition("=") for a in attribute)}
                or None,
                after=after,
                before=before,
                entities=entities,
                cursor=cursor_place(cursor),
                limit=limit,
                page=limit,
            )
        ]
        last = found[-1] if len(found) == limit else None
        return {"runs": plain(found), "next": last and cursor_text(last.created_at, last.execution_id)}

    @router.get("/workflows/counts", tags=["runs"], dependencies=[read], response_model=dict[str, int])
    async def counts(type: Name | None = None, entities: bool = False) -> Any:
        """How many runs there are by state. Counted anew when the last count is older than twenty times what it took."""
        return await desk.shared.get(("counts", type, entities), lambda: client.counts(type, entities=entities))


def letters(router: APIRouter, desk: Desk) -> None:
    read, operate, found = desk.needs("read"), desk.needs("operate", mutates=True), desk.client.dead_letters

    @router.get("/dead-letters", tags=["dead letters"], dependencies=[read], response_model=models.LetterPage)
    async def list_letters(
        type: Name | None = None,
        queue: Name | None = None,
        error: Annotated[Name | None, Query(description="type of the error")] = None,
        workflow_id: Prefix | None = None,
        limit: Limit = 100,
        cursor: Cursor | None = None,
    ) -> Any:
        """Runs that nobody can decide, and those that ended at the cap of history; newest first."""
        page = [
            letter
            async for letter in found.list(
                type=type,
                queue=queue,
                error=error,
                workflow_id=workflow_id,
                cursor=cursor_place(cursor),
                limit=limit,
                page=limit,
            )
        ]
        last = page[-1] if len(page) == limit else None
        return {"letters": plain(page), "next": last and cursor_text(last.at, last.execution_id)}

    @router.get("/dead-letters/causes", tags=["dead letters"], dependencies=[read], response_model=list[models.Cause])
    async def causes(type: Name | None = None, queue: Name | None = None) -> Any:
        """What they died of, the most frequent first."""
        return plain(await found.causes(type=type, queue=queue))

    @router.get("/dead-letters/{execution_id:uuid}", tags=["dead letters"], dependencies=[read], response_model=models.Letter)
    async def letter(execution_id: UUID) -> Any:
        return plain(await found.show(execution_id))

    @router.post("/dead-letters/{execution_id:uuid}/redrive", tags=["dead letters"], dependencies=[operate], status_code=204)
    async def redrive(execution_id: UUID) -> None:
        """Has a parked run decided again."""
        await found.redrive(execution_id)
        desk.changed("")

    @router.post("/dead-letters/{execution_id:uuid}/discard", tags=["dead letters"], dependencies=[operate], status_code=204)
    async def discard(execution_id: UUID, body: models.Terminate | None = None) -> None:
        """Puts the letter away, and terminates its run if that is open."""
        body = body or models.Terminate()
        await found.discard(execution_id, body.reason, timeout=desk.patience(body.timeout))
        desk.changed("")
