"""What the decider needs of the rest of the worker, as it sees it. The node brings them together."""

from __future__ import annotations

from typing import NamedTuple, Protocol
from uuid import UUID

import msgspec

from harvest.core.events import ActivityOptions


class Step(NamedTuple):
    """An activity to run now: a local step, or an eager task whose row says it is ours."""

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

    def start_local(self, step: Step) -> None: ...

    def start_eager(self, step: Step) -> None: ...

    def cancel(self, execution_id: UUID, seq: int) -> None: ...

    def kick(self, queue: str) -> None: ...


class Holdings(Protocol):
    """Which partitions are ours, under which epoch."""

    @property
    def worker_id(self) -> UUID: ...

    @property
    def epochs(self) -> dict[int, int]: ...

    def distrusted(self) -> bool: ...

    async def fenced(self) -> None: ...
