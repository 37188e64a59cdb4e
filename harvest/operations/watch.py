"""What changes, as it changes, for whoever looks: one LISTEN for a whole process, however many look.

While somebody watches, `NOTIFY watch` asks the workers to tell where their runs have got to; they do so a few times a second,
and not at all otherwise. Notices may be lost, so every few seconds one statement looks at the runs that are followed and
at the newest start: shared by all who watch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import Context
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from harvest.hub import diagnosis
from harvest.hub.database import notify
from harvest.operations.site import Site
from harvest.service import Periodic
from harvest.wakes.topics import CHANGED, OWNERS, SWITCH, WATCH, channel, dump

log = logging.getLogger("harvest.operations")
EVERY = 5.0
"""Seconds between shared looks, and between requests to be told."""
ASKED_FOR = 16.0
"""Seconds for which the workers are asked to tell."""
MOST_FOLLOWED = 100
"""Executions that the workers are asked to name first; of others the shared look tells."""
BACKLOG = 1_000


@dataclass(frozen=True, slots=True)
class Moved:
    """Where a run has got to. `decision` is its last one."""

    execution_id: str
    workflow_id: str
    type: str
    state: str
    decision: int


@dataclass(frozen=True, slots=True)
class News:
    """`runs` have moved; `more`: others have, too; `fleet`: workers or partitions changed hands; `figures`: there may be new
    ones."""

    runs: tuple[Moved, ...] = ()
    more: bool = False
    fleet: bool = False
    figures: bool = False


class Following:
    """`arm()` gives a future that is done once the run has moved after that."""

    def __init__(self) -> None:
        self._future: asyncio.Future[None] | None = None

    def arm(self) -> asyncio.Future[None]:
        self._future = asyncio.get_running_loop().create_future()
        return self._future

    def moved(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)


class Looking(Periodic):
    """From the first who watches until `Watch.stop`."""

    doing = "watch the hub"

    def __init__(self, watch: Watch) -> None:
        super().__init__(EVERY)
        self.watch = watch
        self._leave: list[Callable[[], None]] = []

    async def _open(self) -> None:
        watch, site = self.watch, self.watch.site
        await site.listener.add([CHANGED, OWNERS])
        self._leave = [
            site.router.subscribe(CHANGED, watch.changed),
            site.router.subscribe(OWNERS, lambda _: watch.tell(News(fleet=True))),
            site.router.subscribe(SWITCH, lambda _: watch.tell(News(fleet=True))),
        ]
        site.listener.on_connect.append(watch.reconnected)

    async def _close(self) -> None:
        for leave in self._leave:
            leave()
        if self.watch.reconnected in self.watch.site.listener.on_connect:
            self.watch.site.listener.on_connect.remove(self.watch.reconnected)

    async def run_once(self) -> None:
        await self.watch.look()


class Watch:
    """`following(execution_id)` for one run, `news()` for all of them. It starts looking when somebody does, also where nothing
    else of the application was started; `stop()` at the end of a server's life, after which it may begin again."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.looks = 0
        self.ending = False
        self.on_news: Callable[[], None] = lambda: None
        self._followed: dict[str, set[Following]] = {}
        self._readers: set[asyncio.Queue[News]] = set()
        self._seen: dict[str, tuple[int, str]] = {}
        self._newest: Any = None
        self._names: dict[str, str] = {}
        self._looking: Looking | None = None
        self._beginning = asyncio.Lock()

    @property
    def watched(self) -> bool:
        return bool(self._followed or self._readers)

    @property
    def viewers(self) -> int:
        return len(self._readers) + sum(map(len, self._followed.values()))

    async def _look(self) -> None:
        """Begins to look, or looks again at once."""
        async with self._beginning:
            if self._looking is None or not self._looking.alive:
                looking = Looking(self)  # in a context of its own: it outlives the request that it begins with, and its trace
                await asyncio.get_running_loop().create_task(looking.__aenter__(), context=Context())
                self._looking = looking
            self._looking.nudge()

    async def stop(self) -> None:
        """Ends the looking; harmless where there is none."""
        async with self._beginning:
            looking, self._looking = self._looking, None
            if looking is not None:
                await looking.stop()
            self.ending = False

    async def reconnected(self, _: object) -> None:
        if self._looking is not None:
            self._looking.nudge()
        for followers in self._followed.values():
            for each in followers:
                each.moved()
        self.tell(News(more=True, fleet=True))

    def finish(self) -> None:
        """Ends every stream: the server stops."""
        self.ending = True
        self.look_again()

    def look_again(self) -> None:
        """Wakes every stream, for something else than a run that moved."""
        for followers in self._followed.values():
            for each in followers:
                each.moved()
        self.tell(News())

    # --- who looks

    @asynccontextmanager
    async def following(self, execution_id: UUID) -> AsyncIterator[Following]:
        key, mine = str(execution_id), Following()
        self._followed.setdefault(key, set()).add(mine)
        try:
            await self._look()
            yield mine
        finally:
            followers = self._followed.get(key, set())
            followers.discard(mine)
            if not followers:
                self._followed.pop(key, None)
                self._seen.pop(key, None)

    @asynccontextmanager
    async def news(self) -> AsyncIterator[asyncio.Queue[News]]:
        """A queue of news. Who reads too slowly finds one `more` in place of what was missed."""
        mine: asyncio.Queue[News] = asyncio.Queue(BACKLOG)
        first = not self._readers
        self._readers.add(mine)
        try:
            if first:
                await self._look()
            yield mine
        finally:
            self._readers.discard(mine)

    def touched(self, workflow_id: str) -> None:
        """A run was acted on in this process."""
        if self.watched:
            self.tell(News(more=True))
            for key, followers in self._followed.items():
                if self._names.get(key) in (None, workflow_id):
                    for each in followers:
                        each.moved()

    # --- what comes in

    def changed(self, rows: list[Any]) -> None:
        moved = []
        for row in rows:
            if row is None:
                self.tell(News(more=True))
                continue
            each = Moved(*row)
            moved.append(each)
            self._move(each)
        if moved:
            self.tell(News(runs=tuple(moved)))

    def _move(self, each: Moved) -> None:
        followers = self._followed.get(each.execution_id)
        if followers:
            self._seen[each.execution_id] = (each.decision, each.state)
            self._names[each.execution_id] = each.workflow_id
            for one in followers:
                one.moved()

    def tell(self, news: News) -> None:
        if news.runs or news.more or news.fleet:
            self.on_news()
        for queue in self._readers:
            try:
                queue.put_nowait(news)
            except asyncio.QueueFull:
                while not queue.empty():
                    queue.get_nowait()
                queue.put_nowait(News(more=True, fleet=True, figures=True))

    # --- the shared look

    async def look(self) -> None:
        """Once, for all who watch."""
        if not self.watched:
            return
        self.looks += 1
        followed = list(self._followed)[:MOST_FOLLOWED]
        request = dump([ASKED_FOR, followed])
        await notify(self.site.db, [(channel(self.site.db.schema, WATCH), request)])
        newest = await diagnosis.newest(self.site.db)
        if newest != self._newest:
            self._newest = newest
            self.tell(News(more=True))
        self.tell(News(figures=True))
        if self._followed:
            for row in await diagnosis.standing(self.site.db, [UUID(key) for key in self._followed]):
                each = Moved(str(row["execution_id"]), row["workflow_id"], row["type"], row["state"], row["decision"])
                known = self._seen.get(each.execution_id)
                if known != (each.decision, each.state):
                    self._move(each)  # also at the first look: it may have moved since its follower read it, before anyone told
                    if known is not None:
                        self.tell(News(runs=(each,)))
                self._seen[each.execution_id] = (each.decision, each.state)
                self._names[each.execution_id] = each.workflow_id
        self._names = {key: name for key, name in self._names.items() if key in self._followed}
