"""Arguments and results of a function as JSON arrays, typed by its annotations."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import msgspec

from harvest.errors import DefinitionError, PayloadError
from harvest.payload.caps import INPUT_CAP, RESULT_CAP
from harvest.payload.convert import Converter

_EMPTY = msgspec.Raw(b"[]")


class Signature:
    """`encode_args` → JSON array → `decode_args`; `encode_result` → JSON → `decode_result`.

    Annotations are read when first needed, so that they may name types defined later in the module;
    `localns` lets them name types local to the function that holds the definition.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        label: str,
        *,
        skip: int = 0,
        localns: dict[str, Any] | None = None,
        input_cap: int = INPUT_CAP,
    ) -> None:
        self.fn, self.label, self.input_cap = fn, label, input_cap
        self._localns = localns or {}
        parameters = list(inspect.signature(fn).parameters.values())[skip:]
        for p in parameters:
            if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD, p.KEYWORD_ONLY):
                raise DefinitionError(
                    f"{label}: parameter {p.name!r} is {p.kind.description}; durable calls take plain parameters only"
                )
        self.parameters = parameters
        self.names = [p.name for p in parameters]
        self.required = sum(1 for p in parameters if p.default is p.empty)
        self._hints: dict[str, Any] | None = None
        self._converters: dict[int, Converter] = {}
        self._result: Converter | None = None

    def hints(self) -> dict[str, Any]:
        if self._hints is None:
            try:
                self._hints = get_type_hints(self.fn, localns=self._localns, include_extras=True)
            except NameError as exc:
                raise DefinitionError(f"{self.label}: annotation cannot be resolved: {exc}") from exc
        return self._hints

    def _arguments(self, count: int) -> Converter:
        converter = self._converters.get(count)
        if converter is None:
            hints = self.hints()
            types = tuple(hints.get(name, Any) for name in self.names[:count])
            shape: Any = tuple.__class_getitem__(types)
            converter = self._converters[count] = Converter(shape, self.label)
        return converter

    def prepare(self) -> None:
        """Builds every converter now; raises `DefinitionError` for annotations that cannot work."""
        for count in range(self.required, len(self.names) + 1):
            self._arguments(count)
        self.result_converter()

    def result_converter(self) -> Converter:
        if self._result is None:
            self._result = Converter(self.hints().get("return", Any), f"{self.label}: result")
        return self._result

    def encode_args(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> msgspec.Raw:
        """The JSON array of a call. `PayloadError` names the parameter that does not fit."""
        if kwargs:
            args = self._bind(args, kwargs)
        count = len(args)
        if not self.required <= count <= len(self.names):
            raise PayloadError(
                self.label, f"takes {self._arity()} argument(s) ({', '.join(self.names) or 'none'}), got {count}"
            )
        if count == 0:
            return _EMPTY
        try:
            return self._arguments(count).dump(args, self.label, self.input_cap)
        except PayloadError as exc:
            raise self._named(exc) from None

    def _arity(self) -> str:
        most = len(self.names)
        return str(most) if most == self.required else f"{self.required} to {most}"

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        try:
            bound = inspect.Signature(self.parameters).bind(*args, **kwargs)
        except TypeError as exc:
            raise PayloadError(self.label, str(exc)) from None
        bound.apply_defaults()
        return bound.args

    def _named(self, exc: PayloadError) -> PayloadError:
        """Turns the tuple index in a message into the parameter's name."""
        where, _, problem = exc.message.partition("\n")[0].partition(": ")
        if problem.startswith("Tuple should have"):
            return PayloadError(self.label, f"takes {self._arity()} argument(s) ({', '.join(self.names) or 'none'})")
        index, sep, rest = problem.partition(":")
        head, dot, tail = index.partition(".")
        if sep and head.isdigit() and int(head) < len(self.names):
            problem = f"parameter {self.names[int(head)]!r}{dot}{tail}:{rest}"
        return PayloadError(self.label if where != self.label else where, problem, hint=exc.hint)

    def decode_args(self, raw: msgspec.Raw) -> tuple[Any, ...]:
        """Arguments from JSON. Fewer than declared is fine where the rest has defaults."""
        data = bytes(raw)
        if data == b"[]" and self.required == 0:
            return ()
        full = len(self.names)
        if full != self.required or full == 0:
            try:
                full = len(msgspec.json.decode(data, type=list[msgspec.Raw]))
            except msgspec.DecodeError as exc:
                raise PayloadError(self.label, f"input is not a JSON array of arguments: {exc}") from None
            if not self.required <= full <= len(self.names):
                raise PayloadError(self.label, f"takes {self._arity()} argument(s), the stored input has {full}")
        try:
            arguments: tuple[Any, ...] = self._arguments(full).load(data, self.label)
        except PayloadError as exc:
            raise self._named(exc) from None
        return arguments

    def encode_result(self, value: Any) -> msgspec.Raw:
        return self.result_converter().dump(value, f"{self.label}: result", RESULT_CAP)

    def decode_result(self, raw: msgspec.Raw | bytes | str) -> Any:
        return self.result_converter().load(raw, f"{self.label}: result")
