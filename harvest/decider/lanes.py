"""Commit lanes: a connection, its tenure row, and the patience to get a batch in.

A batch lands whole or not at all. On a lost connection the lane asks the hub whether it landed before it
tries again; on bad data it halves the batch until the poisoned draft stands alone; on the fence it says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import perf_counter
from typing import Any
from uuid import UUID

from harvest.backoff import Backoff
from harvest.decisions.decide import Draft
from harvest.decisions.rows import Writer
from harvest.errors import Fenced, HubError
from harvest.hub import executions, history
from harvest.hub.commit import Batch, Committed, Taken, Tenure, commit
from harvest.hub.database import Database, Session
from harvest.hub.sqlstate import Trouble, trouble_of
from harvest.telemetry.counts import Spread

log = logging.getLogger("harvest.decider")

LANE_SETTINGS = {"plan_cache_mode": "force_generic_plan", "jit": "off", "enable_seqscan": "off"}
"""Commits go by key, and their plans are made once: before there are statistics, a scan would look cheap for ever."""
COMMIT_TIMEOUT = 10.0
"""Seconds after which a commit without an answer is asked after on another connection."""


class Lane:
    """`number` is the connection number of its tenure row; `gate(batch, drafts)` writes in what the commit relies on."""

    def __init__(self, db: Database, writer: Writer, number: int, gate: Callable[[Batch, list[Draft]], None]) -> None:
        self.db, self.writer, self.number, self.gate = db, writer, number, gate
        self.worker_id: UUID | None = None
        self.session: Session | None = None
        self.commits = self.drafts = 0
        self.times = Spread()

    async def close(self) -> None:
        session, self.session = self.session, None
        if session is not None:
            await session.close()

    async def connected(self) -> Session:
        if self.session is None or self.session.closed:
            self.session = await self.db.session(timeout=COMMIT_TIMEOUT, **LANE_SETTINGS)
        return self.session

    def batch_of(self, drafts: list[Draft]) -> Batch:
        """Raises `Fenced` when a run of the batch is not ours any more."""
        batch = Batch()
        self.gate(batch, drafts)
        for draft in drafts:
            self.writer.write(draft, batch)
        return batch

    async def commit(
        self,
        drafts: list[Draft],
        landed: Callable[[list[Draft], Committed], None],
        poisoned: Callable[[Draft, Exception], None],
        taken: Callable[[Draft], None],
    ) -> None:
        """Commits all drafts that can be committed, calling `landed`, `poisoned` or `taken` for each.

        Raises `Fenced` when the tenure is over. Waits as long as the database is away.
        """
        stack = [drafts]
        while stack:
            part = stack.pop()
            began = perf_counter()
            try:
                committed = await self._persist(part)
            except Fenced:
                raise
            except Taken as exc:
                for draft in part:
                    if draft.run.execution_id in exc.execution_ids:
                        taken(draft)
                rest = [draft for draft in part if draft.run.execution_id not in exc.execution_ids]
                if rest:
                    stack.append(rest)
                continue
            except Exception as exc:
                if len(part) == 1:
                    poisoned(part[0], exc)
                else:
                    middle = len(part) // 2
                    stack += [part[middle:], part[:middle]]
                continue
            self.times.add(perf_counter() - began)
            self.commits += 1
            self.drafts += len(part)
            landed(part, committed)

    async def _persist(self, drafts: list[Draft]) -> Committed:
        assert self.worker_id is not None
        tenure = Tenure(self.worker_id, self.number, self.writer.pool)
        batch = self.batch_of(drafts)
        backoff, tries, unsure = Backoff(0.05, cap=2.0), 0, False
        while True:
            try:
                session = await self.connected()
                if unsure:
                    found = await self._landed(session, tenure, drafts, batch)
                    if found is not None:
                        return found
                return await commit(session, tenure, batch)
            except asyncio.CancelledError:
                raise
            except (Fenced, Taken):
                # A first try may have landed late, and what refuses the second is its own doing.
                found = await self._surely_landed(tenure, drafts, batch) if unsure else None
                if found is None:
                    raise
                return found
            except Exception as exc:
                trouble = Trouble.AWAY if isinstance(exc, HubError) else trouble_of(exc)
                if not trouble.passes and unsure:
                    # A first try may have landed late: its rows would look like bad data to the second.
                    found = await self._surely_landed(tenure, drafts, batch)
                    if found is not None:
                        return found
                if not trouble.passes or (trouble is Trouble.FULL and len(drafts) > 1):
                    raise
                tries += 1
                if trouble is Trouble.AWAY:
                    unsure = True
                    await self.close()
                if tries in (1, 10) or tries % 60 == 0:
                    log.warning("commit of %d decisions waits for the hub (%s): %s", len(drafts), trouble.value, exc)
            await asyncio.sleep(backoff.delay(tries))

    async def _surely_landed(self, tenure: Tenure, drafts: list[Draft], batch: Batch) -> Committed | None:
        """`_landed`, asked until the hub answers: nothing may be called refused that is durable."""
        backoff, tries = Backoff(0.05, cap=2.0), 0
        while True:
            try:
                return await self._landed(await self.connected(), tenure, drafts, batch)
            except Exception as exc:
                if not (isinstance(exc, HubError) or trouble_of(exc).passes):
                    raise
                tries += 1
                await self.close()
            await asyncio.sleep(backoff.delay(tries))

    async def _landed(self, session: Session, tenure: Tenure, drafts: list[Draft], batch: Batch) -> Committed | None:
        """What the commit gave, if it took effect under this tenure before the connection broke."""
        keys = [(d.run.execution_id, d.number) for d in drafts if d.events is not None]
        if not keys or await history.landed(session, tenure.worker_id, keys) < len(keys):
            return None
        starts = [row[0] for row in batch.rows.get("starts", ())]
        known: Any = await executions.load(session, starts) if starts else {}
        return Committed(frozenset(known), (), unsure=True)
