"""A failure as data: what is stored in history and results, and how it becomes an exception again."""

from __future__ import annotations

import json
import traceback
from typing import Any

import msgspec

from harvest.errors import ActivityTimeout, ApplicationError, HarvestError

_TRACEBACK_CAP = 8_000
_MESSAGE_CAP = 64_000
NOTHING = msgspec.Raw(b"null")


class Failure(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """`type` is the exception's class name (or `ApplicationError.type`), `details` a JSON array, `stack` for people."""

    message: str
    type: str = "Exception"
    non_retryable: bool = False
    details: msgspec.Raw = NOTHING
    stack: str | None = None
    cause: Failure | None = None


class RemoteError(HarvestError):
    """The cause behind an `ActivityError` and its kin, rebuilt from a stored failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.type = failure.type
        self.non_retryable = failure.non_retryable
        self.details: list[Any] = msgspec.json.decode(bytes(failure.details)) or []
        self.stack = failure.stack


def failure_of(exc: BaseException, *, depth: int = 4) -> Failure:
    """The stored form of an exception, with its causes down to `depth`."""
    details = NOTHING
    kind, non_retryable, message = type(exc).__name__, False, str(exc)
    if isinstance(exc, ApplicationError):
        kind, non_retryable = exc.type, exc.non_retryable
        if exc.details:
            details = msgspec.Raw(json.dumps(list(exc.details), default=repr).encode())
    elif isinstance(exc, ActivityTimeout):
        kind = f"ActivityTimeout.{exc.kind}"
    elif isinstance(exc, RemoteError):
        kind, non_retryable = exc.type, exc.non_retryable
    cause = exc.__cause__
    stack = "".join(traceback.format_exception(exc, chain=False))[-_TRACEBACK_CAP:] if exc.__traceback__ else None
    return Failure(
        message=message[:_MESSAGE_CAP].replace("\x00", "\\0"),
        type=kind,
        non_retryable=non_retryable,
        details=details,
        stack=None if stack is None else stack.replace("\x00", "\\0"),
        cause=failure_of(cause, depth=depth - 1) if cause is not None and depth > 0 else None,
    )


def error_of(failure: Failure) -> RemoteError:
    """The exception form of a stored failure, with its chain of causes."""
    error = RemoteError(failure)
    if failure.cause is not None:
        error.__cause__ = error_of(failure.cause)
    return error


def encode_failure(failure: Failure) -> str:
    return msgspec.json.encode(failure).decode()


def decode_failure(raw: str | bytes) -> Failure:
    return msgspec.json.decode(raw, type=Failure)
