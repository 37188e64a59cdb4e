"""Errors as RFC 9457 problem documents: the same names as in Python."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from harvest import errors
from harvest.entity_sql import SqlBusy, SqlError
from harvest.failure import Failure, failure_of

log = logging.getLogger("harvest.server")
MEDIA_TYPE = "application/problem+json"
RETRY_AFTER = 1
"""Seconds that a caller is asked to wait where trying again is right."""

STATUS: tuple[tuple[type[BaseException], int], ...] = (
    (errors.WorkflowClosed, 409),
    (errors.WorkflowNotFound, 404),
    (errors.EntityNotFound, 404),
    (errors.ActivityNotFound, 404),
    (errors.UpdateNotFound, 404),
    (errors.TokenNotFound, 404),
    (errors.UnknownHandlerError, 404),
    (errors.PayloadErased, 410),
    (errors.PayloadTooLarge, 413),
    (errors.PayloadError, 400),  # it fits the schema, and makes no sense; what does not fit is a 422
    (errors.ConfigError, 400),
    (errors.DefinitionError, 400),
    (errors.QueryTimeout, 504),
    (errors.NoAnswer, 504),
    (errors.HubError, 503),
    (errors.HarvestError, 409),  # the state of what was addressed is in the way, or its own code refused
    (SqlBusy, 503),
    (SqlError, 400),
)


class Problem(BaseModel):
    """RFC 9457. `error` is the class of the exception in Python; facts that it carries are further members."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(examples=["urn:harvest:error:WorkflowNotFound"])
    title: str
    status: int
    detail: str
    error: str
    hint: str | None = None


FACTS = (
    "field",
    "where",
    "workflow_id",
    "execution_id",
    "state",
    "known",
    "reasons",
    "line",
    "column",
    "limit",
    "name",
    "path",
)


def status_of(exc: BaseException) -> int:
    return next((status for kind, status in STATUS if isinstance(exc, kind)), 500)


def body_of(exc: BaseException, status: int | None = None) -> dict[str, Any]:
    """The document of an error of Harvest. What user code failed with is in `failure`."""
    name = getattr(exc, "is_called", type(exc).__name__)
    status = status_of(exc) if status is None else status
    body = {
        "type": f"urn:harvest:error:{name}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": getattr(exc, "message", None) or str(exc),
        "error": name,
        "hint": getattr(exc, "hint", None),
    }
    body |= {fact: _plain(value) for fact in FACTS if (value := getattr(exc, fact, None)) not in (None, "")}
    if exc.__cause__ is not None and isinstance(exc, (errors.UpdateRejected, errors.UpdateFailed, errors.OperationRejected)):
        body["failure"] = shown_failure(failure_of(exc.__cause__))
    elif isinstance(kind := getattr(exc, "type", None), str):
        body["failure"] = {"type": kind}
    return body


def _plain(value: Any) -> Any:
    return value if isinstance(value, (str, int, list)) else str(value)


def shown_failure(failure: Failure) -> dict[str, Any]:
    return {"type": failure.type, "message": failure.message}


def response_of(exc: BaseException) -> JSONResponse:
    body = body_of(exc)
    return problem_response(body)


def problem_response(body: dict[str, Any], headers: dict[str, str] | None = None) -> JSONResponse:
    headers = dict(headers or {})
    if body["status"] in (429, 503, 504):
        headers.setdefault("Retry-After", str(RETRY_AFTER))
    return JSONResponse(_held(body), body["status"], headers, media_type=MEDIA_TYPE)


def _held(value: Any) -> Any:
    """Texts that UTF-8 can hold: what a caller sent comes back in messages."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {key: _held(each) for key, each in value.items()}
    return [_held(each) for each in value] if isinstance(value, list) else value


def problem(status: int, name: str, detail: str, *, hint: str | None = None, **more: Any) -> dict[str, Any]:
    return {
        "type": f"urn:harvest:error:{name}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "error": name,
        "hint": hint,
        **more,
    }


def of_validation(exc: RequestValidationError, hint: str | None = None) -> JSONResponse:
    """Each thing that is wrong, by where it is: never the value, which may be a secret or large."""
    found = [{"where": ".".join(str(part) for part in e["loc"]), "problem": e["msg"]} for e in exc.errors()]
    first = found[0] if found else {"where": "request", "problem": "is not valid"}
    detail = f"{first['where']}: {first['problem']}"
    return problem_response(problem(422, "RequestInvalid", detail, hint=hint, errors=found))


def unknown_parameter(name: str, known: list[str]) -> JSONResponse:
    """A misspelt filter must not look like one that everything fits."""
    where = [{"where": f"query.{name[:100]}", "problem": "there is no such parameter"}]
    hint = f"known: {', '.join(known)}" if known else "this route takes none"
    detail = f"query.{name[:100]}: there is no such parameter"
    return problem_response(problem(422, "RequestInvalid", detail, hint=hint, errors=where))


def of_http(exc: HTTPException) -> JSONResponse:
    return problem_response(named(exc), dict(exc.headers or {}))


def named(exc: HTTPException) -> dict[str, Any]:
    """The document of an error that has no class in Python."""
    names = {
        400: "RequestInvalid",
        401: "Unauthenticated",
        403: "Forbidden",
        404: "NotFound",
        405: "MethodNotAllowed",
        413: "BodyTooLarge",
        429: "TooManyRequests",
    }
    name = names.get(exc.status_code, "HTTPError")
    detail = exc.detail if isinstance(exc.detail, str) else HTTPStatus(exc.status_code).phrase
    return problem(exc.status_code, name, detail)


def of_bug(exc: BaseException) -> JSONResponse:
    """An error that is ours: its text stays in the log."""
    log.error("a request failed: %s", type(exc).__name__, exc_info=exc)
    return problem_response(problem(500, "InternalError", "this is a fault of Harvest; its log has the details"))
