"""Retry policies and activity options as users write them, checked when they are written."""

from __future__ import annotations

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


@dataclass(frozen=True)
class RetryPolicy:
    """When and how often to try again.

    `max_attempts` counts the first try; 0 means without end. Waits grow from `initial` by `factor` up to
    `cap`, spread by ±`jitter` (0..1). `non_retryable` lists error types (class names, or the `type` of an
    `ApplicationError`) that fail at once.
    """

    max_attempts: int = 0
    initial: timedelta | float = timedelta(seconds=1)
    factor: float = 2.0
    cap: timedelta | float = timedelta(seconds=60)
    jitter: float = 0.1
    non_retryable: tuple[str | type[BaseException], ...] = field(default=())

    def __post_init__(self) -> None:
        if not isinstance(self.max_attempts, int) or self.max_attempts < 0:
            raise DefinitionError(f"RetryPolicy.max_attempts: must be 0 (no end) or more, got {self.max_attempts!r}")
        if self.factor < 1:
            raise DefinitionError(f"RetryPolicy.factor: must be at least 1, got {self.factor!r}")
        if not 0 <= self.jitter < 1:
            raise DefinitionError(f"RetryPolicy.jitter: must be in 0..1, got {self.jitter!r}")
        seconds("RetryPolicy.initial", self.initial)
        seconds("RetryPolicy.cap", self.cap)

    def spec(self) -> RetrySpec:
        return RetrySpec(
            max_attempts=self.max_attempts,
            initial=seconds("RetryPolicy.initial", self.initial) or 1.0,
            factor=self.factor,
            cap=seconds("RetryPolicy.cap", self.cap) or 60.0,
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
