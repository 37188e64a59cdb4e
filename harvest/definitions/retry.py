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


def refused(spec: RetrySpec, failure: Failure) -> bool:
    """True where trying again is useless by what the failure, or what caused it, says of itself."""
    known: Failure | None = failure
    while known is not None:
        if known.non_retryable or known.type in spec.non_retryable:
            return True
        known = known.cause
    return False


def next_attempt(
    spec: RetrySpec | None, attempt: int, failure: Failure, *, most: int, left: float | None = None, roll: float | None = None
) -> float | None:
    """Seconds until a failed run begins again, or None when its failure is final.

    `most` is the fleet's ceiling of attempts, `left` what remains until the deadline of the whole chain.
    """
    if spec is None or attempt >= most or refused(spec, failure):
        return None
    return next_try(spec, attempt, failure, left=left, roll=roll)
