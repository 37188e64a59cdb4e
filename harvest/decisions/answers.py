"""Between an owner and callers in its process."""

from __future__ import annotations

from harvest.errors import HarvestError
from harvest.failure import Failure


class Undelivered(HarvestError):
    """A direct delivery did not become durable; the caller uses the mailbox instead."""


class Admitted(Undelivered):
    """The owner went away with an update that history has: whoever owns the run now will answer it there."""


class Carried(Undelivered):
    """The run closed with an update that it had admitted, and another execution takes over, and answers it."""


class Answer(HarvestError):
    """An update's bad end, as a failure; `rejected` when the validator refused it."""

    def __init__(self, failure: Failure, *, rejected: bool = False) -> None:
        super().__init__(failure.message)
        self.failure, self.rejected = failure, rejected
