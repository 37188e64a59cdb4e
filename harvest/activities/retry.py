"""Whether and when to try again: pure."""

from __future__ import annotations

from harvest.core.events import RetrySpec
from harvest.definitions.options import backoff_of
from harvest.failure import Failure


def next_try(
    spec: RetrySpec, attempt: int, failure: Failure, *, left: float | None = None, roll: float | None = None
) -> float | None:
    """Seconds until the next try after `attempt` failed, or None when this was the last.

    `left` is what remains of schedule-to-close in seconds: a try that would begin after it is not made.
    """
    if failure.non_retryable or failure.type in spec.non_retryable:
        return None
    if failure.type == "ActivityTimeout.schedule_to_close":
        return None
    if spec.max_attempts and attempt >= spec.max_attempts:
        return None
    delay = backoff_of(spec).delay(attempt, roll=roll)
    if left is not None and delay >= left:
        return None
    return delay
