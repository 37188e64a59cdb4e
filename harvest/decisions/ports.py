"""What the decider needs of the rest of the worker, as it sees it. The node brings them together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol
from uuid import UUID

import msgspec

from harvest.core.events import ActivityOptions
from harvest.decisions.run import Claim
from harvest.hub.commit import Batch


class Step(NamedTuple):
    """An activity to run now: a local step, or an eager task whose row says it is ours. `pool` is that of its run."""

    pool: str
    execution_id: UUID
    workflow_id: str
    partition: int
    seq: int
    name: str
    queue: str
    input: msgspec.Raw
    options: ActivityOptions


class Hands(Protocol):
    """The activity side of this process."""

    def reserve(self, name: str, queue: str | None) -> bool: ...

    def unreserve(self) -> None: ...

    def abandon(self, execution_id: UUID, seq: int) -> None:
        """The row of an eager task says that it is ours, and it will not be started: back to its queue."""

    def start_local(self, step: Step) -> None: ...

    def start_eager(self, step: Step) -> None: ...

    def cancel(self, execution_id: UUID, seq: int) -> None: ...

    def kick(self, queue: str) -> None: ...


class Holdings(Protocol):
    """What this worker may decide: partitions that it owns, or in sticky mode runs that it claimed (`by_claim`)."""

    @property
    def by_claim(self) -> bool: ...

    @property
    def worker_id(self) -> UUID: ...

    def owns(self, partition: int) -> bool:
        """True where every run of the partition is ours, also those that we have not heard of."""

    def covers(self, execution_id: UUID, partition: int) -> bool:
        """True where this run may be decided here, now."""

    def gate(self, batch: Batch, runs: Iterable[tuple[UUID, int]]) -> None:
        """Writes into a batch what the commit has to check. Raises `Fenced` where it cannot hold any more."""

    def done(self, claim: Claim) -> None:
        """A claim has ended: its run is parked, closed or given back."""

    def distrusted(self) -> bool: ...

    async def fenced(self) -> None:
        """A commit was refused: finds out what is ours still."""
