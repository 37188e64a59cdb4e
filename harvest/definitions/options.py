"""Retry policies and activity options as users write them, checked when they are written."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from harvest.backoff import Backoff
from harvest.core.events import ActivityOptions, RetrySpec
from harvest.errors import DefinitionError
from harvest.ids import check_priority, check_queue

Span = timedelta | float | int | None
Mode = Literal["local", "eager", "queue"]


def seconds(name: str, span: Span, *, zero: bool = False) -> float | None:
    """Seconds of an option; `DefinitionError` names the option when it is not a positive duration (or `zero`)."""
    if span is None:
        return None
    if isinstance(span, bool) or not isinstance(span, (timedelta, int, float)):
        raise DefinitionError(f"{name}: expected a timedelta or seconds, got {span!r}")
    value = span.total_seconds() if isinstance(span, timedelta) else float(span)
    if not (0 < value < 1e10 or (zero and value == 0)):
        raise DefinitionError(f"{name}: must be a positive duration, got {span!r}")
    return value


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _error_type(value: object) -> bool:
    return (isinstance(value, str) and bool(value)) or (isinstance(value, type) and issubclass(value, BaseException))


@dataclass(frozen=True)
class RetryPolicy:
    """When and how often to try again.

    `max_attempts` counts the first try; 0 means without end. Waits grow from `initial` by `factor` up to
    `cap` (no less than `initial`), spread by ±`jitter` (0..1). `non_retryable` lists error types (class names, or the
    `type` of an `ApplicationError`) that fail at once.
    """

    max_attempts: int = 0
    initial: timedelta | float = timedelta(seconds=1)
    factor: float = 2.0
    cap: timedelta | float = timedelta(seconds=60)
    jitter: float = 0.1
    non_retryable: tuple[str | type[BaseException], ...] = field(default=())

    def __post_init__(self) -> None:
        if isinstance(self.max_attempts, bool) or not isinstance(self.max_attempts, int) or not 0 <= self.max_attempts < 2**31:
            raise DefinitionError(f"RetryPolicy.max_attempts: must be 0 (no end) or more, got {self.max_attempts!r}")
        if not _number(self.factor) or not 1 <= self.factor <= 1e6:
            raise DefinitionError(f"RetryPolicy.factor: must be a number from 1 to 1,000,000, got {self.factor!r}")
        if not _number(self.jitter) or not 0 <= self.jitter < 1:
            raise DefinitionError(f"RetryPolicy.jitter: must be a number in 0..1, got {self.jitter!r}")
        for name in ("initial", "cap"):
            if seconds(f"RetryPolicy.{name}", getattr(self, name)) is None:
                raise DefinitionError(f"RetryPolicy.{name}: must be a duration, got None")
        if not isinstance(self.non_retryable, (tuple, list)) or not all(map(_error_type, self.non_retryable)):
            raise DefinitionError(
                f"RetryPolicy.non_retryable: must be a tuple of error classes or names, got {self.non_retryable!r}"
            )

    def spec(self) -> RetrySpec:
        return RetrySpec(
            max_attempts=self.max_attempts,
            initial=seconds("RetryPolicy.initial", self.initial) or 1.0,
            factor=self.factor,
            cap=max(seconds("RetryPolicy.cap", self.cap) or 60.0, seconds("RetryPolicy.initial", self.initial) or 1.0),
            jitter=self.jitter,
            non_retryable=tuple(t if isinstance(t, str) else t.__name__ for t in self.non_retryable),
        )


def retry_spec(policy: RetryPolicy | None) -> RetrySpec | None:
    """The stored form. Raises `DefinitionError` for what is no policy."""
    if policy is None:
        return None
    if not isinstance(policy, RetryPolicy):
        raise DefinitionError(f"retry: expected a RetryPolicy, got {policy!r}")
    return policy.spec()


def backoff_of(spec: RetrySpec) -> Backoff:
    return Backoff(spec.initial, spec.factor, spec.cap, spec.jitter)


def activity_options(base: ActivityOptions, **given: Any) -> ActivityOptions:
    """`base` with what was given; time-outs and the policy are checked here.

    Keys: local, mode, queue, priority, start_to_close, schedule_to_start, schedule_to_close, heartbeat, retry.
    """
    fields: dict[str, Any] = {name: getattr(base, name) for name in ActivityOptions.__struct_fields__}
    for name, value in given.items():
        if value is None:
            continue
        if name == "retry":
            fields["retry"] = retry_spec(value)
        elif name in ("start_to_close", "schedule_to_start", "schedule_to_close", "heartbeat"):
            fields[name] = seconds(name, value)
        elif name == "local":
            fields["mode"] = "local" if value else ("eager" if fields["mode"] == "local" else fields["mode"])
        elif name == "mode":
            if value not in ("local", "eager", "queue"):
                raise DefinitionError(f"mode: must be 'local', 'eager' or 'queue', got {value!r}")
            fields["mode"] = value
        elif name == "queue":
            fields[name] = check_queue("queue", value)
        elif name == "priority":
            fields[name] = check_priority("priority", value)
        else:
            raise DefinitionError(f"{name}: not an option of an activity")
    return ActivityOptions(**fields)
