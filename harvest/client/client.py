"""The client: a connection to a hub."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Protocol, Self, TypedDict, TypeVar, Unpack, overload
from uuid import UUID

import msgspec

from harvest.client.bulk import BulkFilters, act_of, check_count, checked_filters
from harvest.client.calls import handler_call, workflow_call
from harvest.client.entity import EntityHandle, EntitySummary
from harvest.client.entity import summary_of as entity_summary_of
from harvest.client.handle import KEY_CAP, RunSummary, WorkflowHandle, summary_of
from harvest.client.letters import DeadLetters
from harvest.client.tokens import Tokens
from harvest.definitions.options import RetryPolicy, Span, retry_spec, seconds
from harvest.definitions.registry import definition_of
from harvest.definitions.workflow import WorkflowDefinition
from harvest.entity import entity_type
from harvest.entity_sql.pool import Params
from harvest.errors import ConfigError, PayloadError, WorkflowNotFound
from harvest.hub import entities as stored_entities
from harvest.hub import executions, workers
from harvest.hub.database import Database, Session, explained
from harvest.hub.migrate import check_version
from harvest.hub.sqlstate import DATABASE_ERRORS
from harvest.ids import as_uuid, check_build, check_name, pool_of
from harvest.operations import audit as auditing
from harvest.operations import bulk, doctor, fleet, switch
from harvest.operations import entity_sql as sql_over_entities
from harvest.operations import health as telling
from harvest.operations import start as starting
from harvest.operations import update as updating
from harvest.operations.audit import AuditEntry
from harvest.operations.bulk import BulkReport
from harvest.operations.entity_sql import FleetRows, Token
from harvest.operations.health import Point
from harvest.operations.site import Site, as_json
from harvest.operations.switch import Switched
from harvest.telemetry.traces import calling, reached
from harvest.workflow import WorkflowFunction

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
STATES = ("RUNNING", "PAUSED", "COMPLETED", "FAILED", "CANCELLED", "TERMINATED", "TIMED_OUT", "CONTINUED_AS_NEW")


class WorkflowClass(Protocol[T_co]):
    """A class whose `@workflow.run` method is called `run`: its result types the handle."""

    def run(self, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, T_co]: ...


class StartOptions(TypedDict, total=False):
    """How to start a run.

    `conflict` says what happens when the id has an open run: fail (the default), use_existing or
    terminate_existing; `reuse` when it only has closed ones: allow_duplicate (the default), allow_failed or
    reject_duplicate. `build_id` pins the run, its children and its continuations to workers of that build. Lower
    `priority` goes first. `retry` (else that of the definition) has a run that fails begin again. `timeout` ends an attempt as
    TIMED_OUT, `chain_timeout` all attempts and continuations together, `delay` puts off the first decision (timedeltas or
    seconds). With `connection` (asyncpg, in a transaction) the run exists if and when that transaction commits.
    """

    queue: str
    build_id: str | None
    conflict: str
    reuse: str
    priority: int
    timeout: Span
    chain_timeout: Span
    retry: RetryPolicy | None
    delay: Span
    memo: Any
    search_attributes: dict[str, Any]
    connection: Any


def _policy(policy: RetryPolicy | None) -> str | None:
    spec = retry_spec(policy)
    return None if spec is None else msgspec.json.encode(spec).decode()


class Client:
    """Starts and finds runs. Safe to share between tasks; concurrent calls are grouped into few statements."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.site = Site(db)

    async def __aenter__(self) -> Self:
        await self.db.open()
        try:
            await check_version(self.db)
            await self.site.learn_mode()
            self.site.listener.on_connect.append(self._reconnected)
            await self.site.listener.__aenter__()
        except BaseException as exc:
            await self.db.close()
            if isinstance(exc, DATABASE_ERRORS):
                raise explained(exc, self.db.dsn) from exc
            raise
        return self

    async def _reconnected(self, _: Session) -> None:
        await self.site.learn_mode()

    async def __aexit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        await self.site.notifier.flush()
        await self.site.listener.stop()
        await self.site.close()
        await self.db.close()

    # --- starting

    @overload
    async def start(
        self, workflow: WorkflowFunction[..., T], *args: Any, id: str, **options: Unpack[StartOptions]
    ) -> WorkflowHandle[T]: ...
    @overload
    async def start(
        self, workflow: type[WorkflowClass[T]], *args: Any, id: str, **options: Unpack[StartOptions]
    ) -> WorkflowHandle[T]: ...
    @overload
    async def start(
        self, workflow: type | str, *args: Any, id: str, **options: Unpack[StartOptions]
    ) -> WorkflowHandle[Any]: ...

    async def start(self, workflow: Any, *args: Any, id: str, **options: Unpack[StartOptions]) -> WorkflowHandle[Any]:
        """Starts a run and returns its handle once it is durable; the options are in `StartOptions`.

        Raises `WorkflowAlreadyStarted`, `UnknownWorkflowError`, `PayloadError`, `PayloadTooLarge`.
        """
        connection, conflict = options.pop("connection", None), options.get("conflict", "fail")
        run, definition = await self._new_run(workflow, args, id, options)
        with calling("start", run.type, workflow_id=id):
            if connection is not None:
                if conflict == "terminate_existing":
                    raise ConfigError("conflict", "terminate_existing cannot be part of your transaction")
                async with self.db.inside(connection) as session:
                    started = await starting.start_inside(self.site, session, run, conflict)
            else:
                started = await starting.start(self.site, run, conflict)
            reached(started.execution_id)
        return WorkflowHandle(self.site, id, started.execution_id, definition)

    async def _new_run(
        self, workflow: Any, args: tuple[Any, ...], id: str, options: StartOptions
    ) -> tuple[executions.NewRun, WorkflowDefinition | None]:
        unknown = sorted(set(options) - set(StartOptions.__annotations__))
        if unknown:
            known = ", ".join(sorted(StartOptions.__annotations__))
            raise ConfigError(unknown[0], "not an option of a start", hint=f"known options: {known}")
        type_, raw, definition = workflow_call(workflow, args)
        queue, reuse = options.get("queue", "default"), options.get("reuse", "allow_duplicate")
        starting.check_start(id, queue, options.get("conflict", "fail"), reuse, options.get("priority", 0))
        memo, attributes = options.get("memo"), options.get("search_attributes")
        if attributes is not None and not isinstance(attributes, dict):
            raise PayloadError("search_attributes", f"must be a dict, got {attributes!r}")
        build_id = options.get("build_id")
        if build_id is not None:
            check_build("build_id", build_id)
        self.site.check_home(id)
        await self.site.check_type(pool_of(queue, build_id), type_)
        run = starting.new_run(
            id,
            type_,
            pool_of(queue, options.get("build_id")),
            raw,
            reuse=reuse,
            priority=options.get("priority", 0),
            timeout=seconds("timeout", options.get("timeout")),
            chain_timeout=seconds("chain_timeout", options.get("chain_timeout")),
            retry=_policy(options.get("retry")),
            delay=seconds("delay", options.get("delay"), zero=True) or 0.0,
            memo=None if memo is None else as_json("memo", memo),
            attributes=None if attributes is None else starting.check_attributes(as_json("search_attributes", attributes)),
        )
        return run, definition

    async def execute(self, workflow: Any, *args: Any, id: str, **options: Unpack[StartOptions]) -> Any:
        """`start`, then `result`."""
        handle: WorkflowHandle[Any] = await self.start(workflow, *args, id=id, **options)
        return await handle.result()

    async def signal_with_start(
        self,
        workflow: Any,
        *args: Any,
        id: str,
        signal: Any,
        signal_args: tuple[Any, ...] = (),
        **options: Unpack[StartOptions],
    ) -> WorkflowHandle[Any]:
        """Signals the open run of this id, or starts one with the signal; one transaction either way."""
        options.setdefault("conflict", "use_existing")
        if "connection" in options:
            raise ConfigError("connection", "signal_with_start has a transaction of its own")
        run, definition = await self._new_run(workflow, args, id, options)
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
        update_timeout: Span = 60.0,
        **options: Unpack[StartOptions],
    ) -> Any:
        """Starts the run if none is open, then updates it and returns the update's result.

        Where the newest run of `id` has an update of this `update_id`, its answer is returned, and nothing is started.
        """
        options.setdefault("conflict", "use_existing")
        _, _, definition = workflow_call(workflow, args)
        handler_call("update", update, update_args, definition)  # bad input is refused before the start
        if update_id is not None and await updating.of_newest(self.site, id, check_name("update_id", update_id, KEY_CAP)):
            known = WorkflowHandle[Any](self.site, id, None, definition)
            return await known.update(update, *update_args, update_id=update_id, timeout=update_timeout)
        handle = await self.start(workflow, *args, id=id, **options)
        return await handle.update(update, *update_args, update_id=update_id, timeout=update_timeout)

    # --- finding

    def handle(self, workflow_id: str, workflow: Any = None, *, execution_id: UUID | None = None) -> WorkflowHandle[Any]:
        """A handle on a run by its id; `workflow` gives its types. With `execution_id`: on that one and its attempts."""
        if execution_id is not None:
            execution_id = as_uuid("execution_id", execution_id)
        definition = None if workflow is None else definition_of(workflow)
        typed = definition if isinstance(definition, WorkflowDefinition) else None
        return WorkflowHandle(self.site, workflow_id, execution_id, typed, pinned=execution_id is not None)

    async def find(self, execution_id: UUID | str) -> WorkflowHandle[Any]:
        """A handle on an execution whose workflow id is not known. Raises `WorkflowNotFound`."""
        execution_id = as_uuid("execution_id", execution_id)
        workflow_id = await executions.home(self.db, execution_id)
        if workflow_id is None:
            raise WorkflowNotFound(f"no run has the execution id {execution_id}")
        return WorkflowHandle(self.site, workflow_id, execution_id, None, pinned=True)

    def entity(self, type: Any, key: str, *, queue: str = "default") -> EntityHandle:
        """The entity of a type (class or name) and key; `queue` names the workers that keep it."""
        return EntityHandle(self.site, type, key, queue)

    async def entities(
        self, type: Any, *, prefix: str = "", after: str = "", limit: int | None = None, page: int = 500
    ) -> AsyncIterator[EntitySummary]:
        """Live entities of a type by key, those after the key `after`."""
        name, _ = entity_type(type)
        if page < 1:
            raise ConfigError("page", f"must be 1 or more, got {page}")
        left = limit
        while left is None or left > 0:
            size = page if left is None else min(page, left)
            rows = await stored_entities.listing(self.db, name, prefix=prefix, after=after, size=size)
            for row in rows:
                yield entity_summary_of(row)
            if len(rows) < size:
                return
            after, left = rows[-1]["key"], None if left is None else left - len(rows)

    async def query_entities_sql(
        self, type: Any, sql: str, params: Params = (), *, after: Sequence[Token] | Token = (), timeout: Span = 10.0
    ) -> FleetRows:
        """One SELECT over all live entities of a type: every owner answers from memory, and the answers are put together.

        The table is `entity (type, key, state, event_id, updated_at)`; fields are read as `state ->> '$.field'`. `after`
        holds commit tokens (`EntityHandle.token()`) that the answer must include. Raises `SqlRefused`, `SqlOverrun`,
        `SqlBusy` or `SqlError`; partitions that did not answer within `timeout` are in `unanswered`.
        """
        name, _ = entity_type(type)
        after = [after] if isinstance(after, Token) else after
        return await sql_over_entities.query_all(self.site, name, sql, params, after, seconds("timeout", timeout) or 10.0)

    async def entity_types(self) -> dict[str, int]:
        """How many live entities there are of each type."""
        return await stored_entities.types(self.db)

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
        entities: bool = False,
        cursor: tuple[datetime, UUID] | None = None,
        limit: int | None = None,
        page: int = 200,
    ) -> AsyncIterator[RunSummary]:
        """Runs, newest first; those of entities only with `entities` or by their `type`.

        `prefix` of the workflow id; `after` and `before` bound the time of creation. `cursor` is (created_at, execution_id) of
        the last run that was seen: the listing goes on behind it."""
        if state is not None and state not in STATES:
            raise ConfigError("state", f"must be one of {', '.join(STATES)}, got {state!r}")
        for name, value in (("type", type), ("queue", queue), ("prefix", prefix)):
            if value is not None:
                check_name(name, value, 1_000)
        if page < 1:
            raise ConfigError("page", f"must be 1 or more, got {page}")
        attributes = None
        if search_attributes:
            attributes = starting.check_attributes(as_json("search_attributes", search_attributes))
        left = limit
        while left is None or left > 0:
            size = page if left is None else min(page, left)
            rows = await executions.listing(
                self.db,
                size=size,
                state=state,
                type=type,
                queue=queue,
                prefix=prefix,
                attributes=attributes,
                after=after,
                before=before,
                cursor=cursor,
                entities=entities,
            )
            for row in rows:
                yield summary_of(row)
            if len(rows) < size:
                return
            cursor = (rows[-1]["created_at"], rows[-1]["execution_id"])
            left = None if left is None else left - len(rows)

    @property
    def dead_letters(self) -> DeadLetters:
        """Runs that nobody can decide: list, causes, show, redrive, discard."""
        return DeadLetters([self.site])

    async def bulk(
        self,
        verb: str,
        *,
        signal: Any = None,
        args: tuple[Any, ...] = (),
        reason: str = "",
        everything: bool = False,
        dry_run: bool = True,
        limit: int | None = None,
        parallel: int = 16,
        timeout: Span = 60.0,
        progress: Callable[[BulkReport], None] = lambda _: None,
        **filters: Unpack[BulkFilters],
    ) -> BulkReport:
        """Cancels, terminates, signals, pauses or resumes all open runs that match the filters (`BulkFilters`).

        A dry run, unless told otherwise: it counts and shows what would be done. Runs are addressed by their logical handle,
        `parallel` at a time; what fails is in the report, and what is durable but was not carried out by a worker within
        `timeout`, for all of them together. To act on what a dry run has shown, and on nothing newer, give its `before`. Raises
        `ConfigError` for a verb or filter that cannot be.
        """
        act = act_of(self.site, verb, signal=signal, args=args, reason=reason, patience=seconds("timeout", timeout) or 60.0)
        check_count("parallel", parallel, 1)
        check_count("limit", limit, 0)
        found = checked_filters(filters, everything)
        if verb in ("pause", "resume"):
            found.setdefault("state", "RUNNING" if verb == "pause" else "PAUSED")
        return await bulk.run(self.site, verb, act, found, dry_run=dry_run, limit=limit, parallel=parallel, progress=progress)

    async def counts(self, type: str | None = None, *, entities: bool = False) -> dict[str, int]:
        """How many runs there are by state; those of entities only with `entities` or by their `type`."""
        return await executions.counts(self.db, type, entities=entities)

    async def enable_owner_mode(self) -> Switched:
        """Gives each run one owner (O-8). Raises `OwnerModeRefused` with the reasons, or `HubBusy`."""
        return await switch.enable_owner_mode(self.site)

    async def disable_owner_mode(self) -> Switched:
        """Puts the hub on the sticky claim loop. Raises `HubBusy`."""
        return await switch.disable_owner_mode(self.site)

    async def owner_status(self, queue: str | None = None) -> fleet.OwnerStatus:
        """Who owns which partition, and who is alive."""
        return await fleet.owner_status(self.site, queue)

    async def failovers(self, *, limit: int = 20) -> Sequence[fleet.Failover]:
        """Workers that died, and how long it took until others had their partitions; newest first."""
        check_count("limit", limit, 1)
        return await fleet.failovers(self.site, limit)

    async def sticky_report(self, workflow_id: str, execution_id: UUID | None = None) -> fleet.StickyReport:
        """Where each decision of a run was taken, by whom, and which windows timed out (W-5)."""
        return await fleet.sticky_report(self.site, workflow_id, execution_id)

    async def sticky_figures(self) -> dict[str, float]:
        """The figures of sticky execution over the whole hub (W-4)."""
        return await fleet.sticky_figures(self.site)

    async def examine(self) -> Sequence[doctor.Finding]:
        """What is wrong with the hub or its fleet, worst first; what `harvest doctor` prints."""
        return await doctor.examine(self.site)

    async def health(self, *, over: Span = telling.HOUR) -> Sequence[Point]:
        """How the hub did over the last hour, in steps of 30 s: throughput, commits, waits, replay modes, backlog."""
        return await telling.health(self.site, seconds("over", over) or telling.HOUR)

    @property
    def tokens(self) -> Tokens:
        """Who may use the HTTP API."""
        return Tokens(self.site)

    async def audit(
        self,
        *,
        actor: str | None = None,
        workflow_id: str | None = None,
        cursor: tuple[datetime, UUID] | None = None,
        limit: int = 100,
    ) -> Sequence[AuditEntry]:
        """Mutating calls over HTTP, newest first; `cursor` is (at, audit_id) of the last one seen."""
        check_count("limit", limit, 1)
        return await auditing.listing(self.site, size=limit, actor=actor, workflow_id=workflow_id, cursor=cursor)

    async def workers(self) -> Sequence[dict[str, Any]]:
        """Workers that are alive now."""
        rows = await workers.live(self.db)
        return [{**dict(row), "definitions": json.loads(row["definitions"])} for row in rows]
