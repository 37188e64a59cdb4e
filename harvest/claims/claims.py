"""What a worker has claimed: the decider's view of sticky mode."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from uuid import UUID

from harvest.decisions.run import Claim
from harvest.errors import Fenced
from harvest.hub.commit import Batch


class Claims:
    """`held` by execution id. `on_done()` is called when a slot became free."""

    by_claim = True

    def __init__(
        self, worker_id: Callable[[], UUID], distrusted: Callable[[], bool], fenced: Callable[[], Awaitable[None]]
    ) -> None:
        self._worker_id, self._distrusted, self._fenced = worker_id, distrusted, fenced
        self.held: dict[UUID, Claim] = {}
        self.on_done: Callable[[], None] = lambda: None

    @property
    def worker_id(self) -> UUID:
        return self._worker_id()

    def owns(self, partition: int) -> bool:
        return False

    def covers(self, execution_id: UUID, partition: int) -> bool:
        return execution_id in self.held

    def gate(self, batch: Batch, runs: Iterable[tuple[UUID, int]]) -> None:
        for execution_id, _ in runs:
            claim = self.held.get(execution_id)
            if claim is None:
                raise Fenced(f"run {execution_id} is not claimed by this worker any more")
            batch.claims[execution_id] = claim.number

    def done(self, claim: Claim) -> None:
        held = self.held.get(claim.execution_id)
        if held is not None and held.number == claim.number:
            del self.held[claim.execution_id]
            self.on_done()

    def distrusted(self) -> bool:
        return self._distrusted()

    async def fenced(self) -> None:
        self.held.clear()
        await self._fenced()
