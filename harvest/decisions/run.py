"""What an owner keeps of a run while it has anything to do with it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from harvest.core.events import Arrival, Command, RetrySpec
from harvest.core.instance import Instance
from harvest.core.program import RunInfo
from harvest.hub.executions import NewRun


class Delivery(NamedTuple):
    """An arrival on its way into history.

    `message` is its mailbox row, if it has one (`keyed` rows stay after they are read); `ack` is resolved
    when the decision that ingested it is durable; `lost` is called when none will be taken here.
    """

    arrival: Arrival
    message: UUID | None = None
    keyed: bool = False
    ack: asyncio.Future[Any] | None = None
    lost: Callable[[], None] | None = None

    def refuse(self, error: BaseException) -> None:
        """It will not be ingested by this worker, for now at least."""
        if self.ack is not None and not self.ack.done():
            self.ack.set_exception(error)
        if self.lost is not None:
            self.lost()


class Parent(NamedTuple):
    execution_id: UUID
    workflow_id: str
    pool: str
    seq: int


class Question(NamedTuple):
    """A query and who waits for its answer (raw JSON)."""

    name: str
    input: Any
    answer: asyncio.Future[Any]


@dataclass(slots=True)
class Claim:
    """In sticky mode: this worker may decide the run until it parks it.

    `number` is the fence, `wakes` what had been poked when its mail was last read, `decision` the last one in history when it
    was claimed. A claim is `fresh` until its mail is read again. `scheduled` and `replay_mode` tell how it came here
    (W-2, W-5); `window` is the pin's length in seconds.
    """

    execution_id: UUID
    partition: int
    number: int
    wakes: int
    decision: int
    scheduled: str
    replay_mode: str
    window: float | None
    fresh: bool = True
    sticky_worker_id: UUID | None = None
    sticky_until: datetime | None = None

    @property
    def cache_directive(self) -> str:
        """`resume_if_present`: what is in memory may be used if history has not moved on; else `cold`."""
        return "resume_if_present" if self.replay_mode == "sticky_hit_expected" else "cold"


class Run:
    """`decision` and `events` are the last durable ones; `stored` is the (state, due) of its task row.

    `busy` while a decision is being committed; `hot` holds the seqs of work that exists only in memory
    (local activities, external requests), for which the task row must say 'running'; `tasks` the seqs that
    have a row in activity_tasks. `updates` are admitted updates whose caller waits in this process,
    `remote_updates` those that are answered through their mailbox row.
    """

    __slots__ = (
        "blocked_until",
        "busy",
        "chain_deadline_us",
        "claim",
        "dead",
        "deadline_us",
        "decision",
        "events",
        "execution_id",
        "failing",
        "forked",
        "history_bytes",
        "hot",
        "info",
        "instance",
        "known",
        "launch",
        "launch_ack",
        "loaded",
        "loading",
        "mail",
        "parent",
        "parent_close",
        "parking",
        "partition",
        "priority",
        "questions",
        "queue",
        "queued",
        "recorded",
        "reissue",
        "remote_updates",
        "retry",
        "seen",
        "since",
        "span",
        "stored",
        "strikes",
        "tasks",
        "terminal",
        "updates",
        "workflow_id",
    )

    def __init__(self, execution_id: UUID, partition: int) -> None:
        self.execution_id, self.partition = execution_id, partition
        self.workflow_id = ""
        self.info: RunInfo | None = None
        self.parent: Parent | None = None
        self.parent_close: str | None = None
        self.priority = 0
        self.deadline_us: int | None = None
        self.chain_deadline_us: int | None = None
        self.retry: RetrySpec | None = None  # of its start; else its definition's counts
        self.forked = False  # its history so far is that of the run it was forked from
        self.reissue: list[Command] = []  # of a forked run: what was under way, and has no row yet
        self.instance: Instance | None = None
        self.known = False  # its row has been read, so a missing instance can be built
        self.decision = 0
        self.events = 0
        self.history_bytes = 0
        self.recorded = 0  # of an entity: the decision that recorded its state last
        self.stored: tuple[str, int | None] = ("pending", None)
        self.queue: deque[Delivery] = deque()
        self.queued = False
        self.busy = False
        self.mail = False  # the mailbox (and finished tasks) should be read before the next decision
        self.hot: set[int] = set()
        self.seen: set[UUID] = set()
        self.updates: dict[str, asyncio.Future[Any]] = {}
        self.remote_updates: set[str] = set()
        self.tasks: dict[int, str] = {}
        self.launch: NewRun | None = None  # not stored yet: its first decision stores it
        self.launch_ack: asyncio.Future[None] | None = None
        self.loaded: Any = None  # a `load.Loaded` waiting to be absorbed
        self.loading = False
        self.claim: Claim | None = None
        self.parking = False  # a commit that ends the claim is in flight: results go to their rows
        self.questions: list[Question] = []
        self.strikes = 0
        self.failing = False  # its row tells of a failed decision
        self.span: Any = None  # of the decision that is being made, where decisions are traced
        self.since = 0.0  # when it became ready, while decisions are timed
        self.dead = False
        self.blocked_until = 0
        self.terminal = False

    def offer(self, delivery: Delivery) -> bool:
        """Queues an arrival; False when its mailbox row is on its way already."""
        message = delivery.message
        if message is not None:
            if message in self.seen:
                return False
            self.seen.add(message)
        self.queue.append(delivery)
        return True

    def next_due_us(self) -> int | None:
        """The earliest of its timers and its own deadline."""
        due = None if self.instance is None else self.instance.next_due_us()
        if self.deadline_us is not None and (due is None or self.deadline_us < due):
            due = self.deadline_us
        if self.chain_deadline_us is not None and (due is None or self.chain_deadline_us < due):
            return self.chain_deadline_us
        return due

    @property
    def restless(self) -> bool:
        """True when its code has more to do without anything arriving."""
        return self.instance is not None and self.instance.restless

    @property
    def idle(self) -> bool:
        """True when nothing in this process would miss it."""
        return not (
            self.busy
            or self.queued
            or self.queue
            or self.updates
            or self.questions
            or self.loading
            or self.loaded is not None
            or self.dead
            or self.claim is not None
        )

    def size(self) -> int:
        """Bytes it is taken to hold in memory: its history as a stand-in for its state, and the coroutine."""
        return 4_096 + 2 * self.history_bytes

    def drop_instance(self) -> None:
        """Out of memory, on this thread; the next decision replays cold."""
        instance, self.instance = self.instance, None
        if instance is not None:
            instance.seal()
