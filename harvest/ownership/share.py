"""What one worker owns of one pool: the decider's view of ownership."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING
from uuid import UUID

from harvest.errors import Fenced
from harvest.hub.commit import Batch

if TYPE_CHECKING:
    from harvest.ownership.keeper import Keeper


class Share:
    """`epochs` are the partitions it takes work in, `leaving` those it is about to release: decisions that are in flight
    there may finish, no new one begins.

    Callbacks: `on_acquired(partitions)`, `on_leaving(partitions)`; `busy()` gives the partitions with a decision in flight.
    """

    by_claim = False

    def __init__(self, keeper: Keeper, pool: str) -> None:
        self.keeper, self.pool = keeper, pool
        self.epochs: dict[int, int] = {}
        self.unsure = False  # the answer of an acquisition was lost: the hub may say more than we know
        self.leaving: dict[int, int] = {}
        self.on_acquired: Callable[[list[int]], None] = lambda _: None
        self.on_leaving: Callable[[list[int]], None] = lambda _: None
        self.busy: Callable[[], Collection[int]] = lambda: ()

    @property
    def worker_id(self) -> UUID:
        return self.keeper.worker_id

    @property
    def any(self) -> bool:
        return bool(self.epochs)

    def owns(self, partition: int) -> bool:
        return partition in self.epochs

    def covers(self, execution_id: UUID, partition: int) -> bool:
        return partition in self.epochs

    def distrusted(self) -> bool:
        return self.keeper.distrusted()

    async def fenced(self) -> None:
        await self.keeper.fenced()

    def gate(self, batch: Batch, runs: Iterable[tuple[UUID, int]]) -> None:
        """Names the epochs that a batch relies on. Raises `Fenced` for a partition that is not ours any more."""
        epochs, leaving = self.epochs, self.leaving
        for _, partition in runs:
            epoch = epochs.get(partition) or leaving.get(partition)
            if epoch is None:
                raise Fenced(f"partition {partition} of {self.pool!r} is not owned by this worker any more")
            batch.epochs[partition] = epoch

    def done(self, claim: object) -> None:
        """Owners hold no claims."""

    # --- the keeper's side

    def now_holds(self, held: dict[int, int]) -> list[int]:
        """Takes in what the hub says is ours; returns what is new."""
        new = [p for p, epoch in held.items() if self.epochs.get(p) != epoch and self.leaving.get(p) != epoch]
        self.epochs = {p: epoch for p, epoch in held.items() if self.leaving.get(p) != epoch}
        if new:
            self.on_acquired(new)
        return new

    def leave(self, partitions: Iterable[int]) -> None:
        """First phase of a release: no new work there."""
        chosen = [p for p in partitions if p in self.epochs]
        for partition in chosen:
            self.leaving[partition] = self.epochs.pop(partition)
        if chosen:
            self.on_leaving(chosen)

    def idle(self) -> list[int]:
        """What may be released: leaving, and without a decision in flight."""
        busy = self.busy()
        return [p for p in self.leaving if p not in busy]

    def clear(self) -> None:
        self.epochs, self.leaving = {}, {}
