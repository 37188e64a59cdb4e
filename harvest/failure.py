"""A failure as data: what is stored in history and results, and how it becomes an exception again."""

from __future__ import annotations

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
    """The stored form of an exception, with its causes down to `depth`. Never raises: whatever user code made
    of its exception, something can be stored."""
    details, kind, non_retryable = NOTHING, type(exc).__name__, False
    if isinstance(exc, ApplicationError):
        kind, non_retryable = _text(exc.type), bool(exc.non_retryable)
        if exc.details:
            details = _details(exc.details)
    elif isinstance(exc, ActivityTimeout):
        kind = f"ActivityTimeout.{exc.kind}"
    elif isinstance(exc, RemoteError):
        kind, non_retryable = exc.type, exc.non_retryable
    cause = exc.__cause__
    return Failure(
        message=_text(exc)[:_MESSAGE_CAP],
        type=kind,
        non_retryable=non_retryable,
        details=details,
        stack=_stack(exc),
        cause=failure_of(cause, depth=depth - 1) if cause is not None and depth > 0 else None,
    )


def _text(value: object) -> str:
    """Text that Postgres and JSON can hold."""
    try:
        text = str(value)
    except BaseException as exc:
        text = f"<{type(value).__name__}, whose text raised {type(exc).__name__}>"
    return text.replace("\x00", "\\0").encode("utf-8", "backslashreplace").decode()


def _details(details: tuple[Any, ...]) -> msgspec.Raw:
    """A JSON array; what JSON cannot hold is described."""
    try:
        return msgspec.Raw(msgspec.json.encode(list(details), enc_hook=repr))
    except Exception:
        return msgspec.Raw(msgspec.json.encode([_text(item) for item in details]))


def _stack(exc: BaseException) -> str | None:
    if exc.__traceback__ is None:
        return None
    try:
        return _text("".join(traceback.format_exception(exc, chain=False))[-_TRACEBACK_CAP:])
    except Exception:
        return None


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
