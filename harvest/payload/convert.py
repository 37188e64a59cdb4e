"""One converter per annotation: validate, write JSON, read JSON.

Infinity and NaN are written as strings and bytes as base64, so that what pydantic can type survives the
way through JSON.
"""

from __future__ import annotations

from typing import Any

import msgspec
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUndefinedAnnotation
from pydantic_core import PydanticSerializationError

from harvest.errors import DefinitionError, PayloadError
from harvest.payload.caps import check_size

_CONFIG = ConfigDict(
    ser_json_inf_nan="strings", ser_json_bytes="base64", val_json_bytes="base64", arbitrary_types_allowed=False
)


def problem_of(exc: ValidationError) -> str:
    """The first problems of a validation error in one line: where, what, and the value."""
    parts = []
    for error in exc.errors(include_url=False, include_context=False)[:3]:
        at = ".".join(str(x) for x in error["loc"])
        parts.append(f"{at + ': ' if at else ''}{error['msg']} (got {error['input']!r:.100})")
    return "; ".join(parts)


class Converter:
    """`dump` and `load` one annotated type."""

    __slots__ = ("_dump", "_load", "_validate", "annotation")

    def __init__(self, annotation: Any, where: str) -> None:
        self.annotation = annotation
        own = isinstance(annotation, type) and (
            issubclass(annotation, BaseModel) or hasattr(annotation, "__dataclass_fields__") or hasattr(annotation, "__total__")
        )
        try:
            adapter: TypeAdapter[Any] = TypeAdapter(annotation) if own else TypeAdapter(annotation, config=_CONFIG)
        except (PydanticSchemaGenerationError, PydanticUndefinedAnnotation) as exc:
            raise DefinitionError(
                f"{where}: pydantic cannot handle the annotation {annotation!r}",
                hint="use a pydantic model, a dataclass, a TypedDict or plain JSON types",
            ) from exc
        # The adapter's own methods add a microsecond of argument handling to each call.
        self._dump, self._load, self._validate = (
            adapter.serializer.to_json,
            adapter.validator.validate_json,
            adapter.validator.validate_python,
        )

    def check(self, value: Any, where: str) -> Any:
        """The value as the annotation sees it; `PayloadError` names what is wrong."""
        try:
            return self._validate(value)
        except ValidationError as exc:
            raise PayloadError(where, problem_of(exc)) from None

    def dump(self, value: Any, where: str, cap: int) -> msgspec.Raw:
        """Checks and writes; `PayloadError` or `PayloadTooLarge` before anything is stored."""
        try:
            raw = self._dump(self._validate(value), warnings="error")
        except ValidationError as exc:
            raise PayloadError(where, problem_of(exc)) from None
        except (PydanticSerializationError, ValueError, RecursionError) as exc:
            raise PayloadError(where, f"cannot be written as JSON: {exc}", hint="pass plain data, not objects") from None
        return msgspec.Raw(check_size(where, raw, cap))

    def dump_whole(self, value: Any, where: str, cap: int) -> msgspec.Raw:
        """`dump` of a value that was changed in place: what does not fit its annotation is found when it is read back."""
        try:
            raw = self._dump(value, warnings="error", round_trip=True, by_alias=False)
        except (PydanticSerializationError, ValueError, TypeError, AttributeError, RecursionError) as exc:
            raise PayloadError(where, f"cannot be written as JSON: {exc}", hint="pass plain data, not objects") from None
        return msgspec.Raw(check_size(where, raw, cap))

    def load_whole(self, data: bytes, where: str) -> Any:
        """What `dump_whole` wrote: fields have their own names there, not their aliases."""
        try:
            return self._load(data, by_alias=False, by_name=True)
        except ValidationError as exc:
            raise PayloadError(where, problem_of(exc)) from None

    def load(self, raw: msgspec.Raw | bytes | str, where: str) -> Any:
        try:
            return self._load(raw if isinstance(raw, (bytes, str)) else bytes(raw))
        except ValidationError as exc:
            raise PayloadError(where, problem_of(exc)) from None
