"""Names, lengths of time, moments: what the bodies are made of."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, Field

from harvest.ids import WORKFLOW_ID_CAP

Json = Any


def _number(value: Any) -> Any:
    """JSON numbers only: a truth value or a text is none."""
    if isinstance(value, (bool, str)):
        raise ValueError("must be a number")
    return value


def _moment(value: Any) -> Any:
    """ISO 8601 only: a bare number would be taken for seconds since 1970."""
    if isinstance(value, str) and "-" not in value[1:]:
        raise ValueError("must be a time as in ISO 8601, with its offset")
    return value


Number = BeforeValidator(_number)


def _thinkable(value: datetime) -> datetime:
    if not 1900 < value.year < 9000:
        raise ValueError("must be of the years 1901 to 8999")
    return value


Moment = Annotated[AwareDatetime, BeforeValidator(_moment), AfterValidator(_thinkable)]
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00]+$")]
WorkflowId = Annotated[str, Field(min_length=1, max_length=WORKFLOW_ID_CAP, pattern=r"^[^@\x00][^\x00]*$")]
Queue = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^@\x00]+$")]
Text = Annotated[str, Field(max_length=10_000, pattern=r"^[^\x00]*$")]
Note = Annotated[str, Field(min_length=1, max_length=10_000, pattern=r"^[^\x00]+$")]
Key = Annotated[str, Field(min_length=1, max_length=900, pattern=r"^[^\x00]+$")]
Seconds = Annotated[float, Field(gt=0, lt=1e9, description="seconds", allow_inf_nan=False), Number]
WAIT = Field(ge=0.001, le=60, description="seconds to wait for an answer", allow_inf_nan=False)
Timeout = Annotated[float, WAIT, Number]
AskedFor = Annotated[float, WAIT]
"""The same as a query parameter, which is a text."""
State = Annotated[
    Literal["RUNNING", "PAUSED", "COMPLETED", "FAILED", "CANCELLED", "TERMINATED", "TIMED_OUT", "CONTINUED_AS_NEW"],
    BeforeValidator(lambda value: value.upper() if isinstance(value, str) else value),
]
