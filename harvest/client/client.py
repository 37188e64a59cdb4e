"""The client: a connection to a hub."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar, overload
from uuid import UUID

from harvest.client.calls import handler_call, workflow_call
from harvest.client.handle import RunSummary, WorkflowHandle, summary_of
from harvest.config import HubSettings
from harvest.definitions.options import Span, seconds
from harvest.definitions.registry import definition_of
from harvest.definitions.workflow import WorkflowDefinition
from harvest.errors import ConfigError, PayloadError
from harvest.hub import executions, workers
from harvest.hub.database import Database
from harvest.hub.migrate import check_version
from harvest.operations import start as starting
from harvest.operations.site import Site, as_json
from harvest.workflow import WorkflowFunction

T = TypeVar("T")
STATES = ("RUNNING", "PAUSED", "COMPLETED", "FAILED", "CANCELLED", "TERMINATED", "TIMED_OUT", "CONTINUED_AS_NEW")


def connect(dsn: str | None = None, *, schema: str | None = None, pool_size: int = 8, patience: Span = 10.0) -> Client:
    """A client for the hub at `dsn` (default `HARVEST_DATABASE_URL`); use it with `async with`.

    `patience` is how long a call waits for a database that is away before it raises `HubUnreachable`.
    Opening raises `HubUnreachable`, `HubNotMigrated`, `HubNewer` or `ConfigError`.
    """
    settings = HubSettings()
    db = Database(
        dsn or settings.database_url,
        schema=schema or settings.schema_name,
        size=pool_size,
        patience=seconds("patience", patience) or 10.0,
    )
    return Client(db)


class Client:
    """Starts and finds runs. Safe to share between tasks; concurrent calls are grouped into few statements."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.site = Site(db)

    async def __aenter__(self) -> Self:
        await self.db.open()
        try:
            await check_version(self.db)
            await self.site.listener.__aenter__()
        except BaseException:
            await self.db.close()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        await self.site.notifier.flush()
        await self.site.listener.stop()
        await self.db.close()

    # --- starting

    @overload
    async def start(self, workflow: WorkflowFunction[..., T], *args: Any, id: str, **options: Any) -> WorkflowHandle[T]: ...
    @overload
    async def start(self, workflow: type | str | Callable[..., Any], *args: Any, id: str, **options: Any) -> WorkflowHandle[Any]: ...

    async def start(
        self,
        workflow: Any,
        *args: Any,
        id: str,
        queue: str = "default",
        conflict: str = "fail",
        reuse: str = "allow_duplicate",
        priority: int = 0,
        timeout: Span = None,
        delay: Span = None,
        memo: Any = None,
        search_attributes: dict[str, Any] | None = None,
        connection: Any = None,
    ) -> WorkflowHandle[Any]:
        """Starts a run and returns its handle once it is durable.

        `conflict` says what happens when the id has an open run: fail, use_existing or terminate_existing;
        `reuse` when it only has closed ones: allow_duplicate, allow_failed or reject_duplicate. Lower
        `priority` goes first. `timeout` ends the run as TIMED_OUT, `delay` puts off its first decision. With
        `connection` (asyncpg, in a transaction) the run exists if and when that transaction commits.

        Raises `WorkflowAlreadyStarted`, `UnknownWorkflowError`, `PayloadError`, `PayloadTooLarge`.
        """
        run, definition = await self._new_run(
            workflow, args, id, queue, conflict, reuse, priority, timeout, delay, memo, search_attributes
        )
        if connection is not None:
            if conflict == "terminate_existing":
                raise ConfigError("conflict", "terminate_existing cannot be part of your transaction")
            async with self.db.inside(connection) as session:
                started = await starting.start_inside(self.site, session, run, conflict)
        else:
            started = await starting.start(self.site, run, conflict)
        fresh = started.created and connection is None
        return WorkflowHandle(self.site, id, started.execution_id, definition, fresh=fresh)

    async def _new_run(
        self, workflow: Any, args: tuple[Any, ...], id: str, queue: str, conflict: str, reuse: str, priority: int,
        timeout: Span, delay: Span, memo: Any, search_attributes: dict[str, Any] | None,
    ) -> tuple[executions.NewRun, WorkflowDefinition | None]:  # fmt: skip
        type_, raw, definition = workflow_call(workflow, args)
        starting.check_start(id, queue, conflict, reuse)
        if isinstance(priority, bool) or not isinstance(priority, int) or not -1000 <= priority <= 1000:
            raise PayloadError("priority", f"must be a whole number from -1000 to 1000, got {priority!r}")
        try:
            texts = [None if value is None else as_json(value) for value in (memo, search_attributes)]
        except TypeError as exc:
            raise PayloadError("memo or search_attributes", f"cannot be written as JSON: {exc}") from None
        if search_attributes is not None and not isinstance(search_attributes, dict):
            raise PayloadError("search_attributes", f"must be a dict, got {search_attributes!r}")
        await self.site.check_type(queue, type_)
        run = starting.new_run(
            id,
            type_,
            queue,
            raw,
            reuse=reuse,
            priority=priority,
            timeout=seconds("timeout", timeout),
            delay=seconds("delay", delay) or 0.0,
            memo=texts[0],
            attributes=texts[1],
        )
        return run, definition

    async def execute(self, workflow: Any, *args: Any, id: str, **options: Any) -> Any:
        """`start`, then `result`."""
        handle: WorkflowHandle[Any] = await self.start(workflow, *args, id=id, **options)
        return await handle.result()

    async def signal_with_start(
        self, workflow: Any, *args: Any, id: str, signal: Any, signal_args: tuple[Any, ...] = (), queue: str = "default", **options: Any
    ) -> WorkflowHandle[Any]:
        """Signals the open run of this id, or starts one with the signal; one transaction either way."""
        options.setdefault("conflict", "use_existing")
        run, definition = await self._new_run(
            workflow,
            args,
            id,
            queue,
            options["conflict"],
            options.get("reuse", "allow_duplicate"),
            options.get("priority", 0),
            options.get("timeout"),
            options.get("delay"),
            options.get("memo"),
            options.get("search_attributes"),
        )
        name, raw, _ = handler_call("signal", signal, signal_args, definition)
        started = await starting.start(self.site, run, options["conflict"], signal=(name, raw))
        return WorkflowHandle(self.site, id, started.execution_id, definition)

    async def update_with_start(
        self,
        workflow: Any,
        *args: Any,
        id: str,
        update: Any,
        update_args: tuple[Any, ...] = (),
        update_id: str | None = None,
        timeout: Span = 60.0,
        **options: Any,
    ) -> Any:
        """Starts the run if none is open, then updates it and returns the update's result."""
        options.setdefault("conflict", "use_existing")
        _, _, definition = workflow_call(workflow, args)
        handler_call("update", update, update_args, definition)  # bad input is refused before the start
        handle = await self.start(workflow, *args, id=id, **options)
        return await handle.update(update, *update_args, update_id=update_id, timeout=timeout)

    # --- finding

    def handle(self, workflow_id: str, workflow: Any = None, *, execution_id: UUID | None = None) -> WorkflowHandle[Any]:
        """A handle on a run by its id; `workflow` gives its types."""
        definition = None if workflow is None else definition_of(workflow)
        return WorkflowHandle(
            self.site, workflow_id, execution_id, definition if isinstance(definition, WorkflowDefinition) else None
        )

    async def list(
        self,
        *,
        state: str | None = None,
        type: str | None = None,
        queue: str | None = None,
        prefix: str | None = None,
        search_attributes: dict[str, Any] | None = None,
        after: datetime | None = None,
        before: datetime | None = None,
        limit: int | None = None,
        page: int = 200,
    ) -> AsyncIterator[RunSummary]:
        """Runs, newest first. `prefix` of the workflow id; `after` and `before` bound the time of creation."""
        if state is not None and state not in STATES:
            raise ConfigError("state", f"must be one of {', '.join(STATES)}, got {state!r}")
        cursor, left = None, limit
        while left is None or left > 0:
            size = page if left is None else min(page, left)
            rows = await executions.listing(
                self.db,
                size=size,
                state=state,
                type=type,
                queue=queue,
                prefix=prefix,
                attributes=None if search_attributes is None else as_json(search_attributes),
                after=after,
                before=before,
                cursor=cursor,
            )
            for row in rows:
                yield summary_of(row)
            if len(rows) < size:
                return
            cursor = (rows[-1]["created_at"], rows[-1]["execution_id"])
            left = None if left is None else left - len(rows)

    async def counts(self, type: str | None = None) -> dict[str, int]:
        """How many runs there are by state."""
        return await executions.counts(self.db, type)

    async def workers(self) -> list[dict[str, Any]]:
        """Workers that are alive now."""
        rows = await workers.live(self.db)
        return [{**dict(row), "definitions": json.loads(row["definitions"])} for row in rows]
