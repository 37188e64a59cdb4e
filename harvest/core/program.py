"""What a run is made of, as the kernel needs it: the program, its handlers, what it knows of itself."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import msgspec

from harvest.core import events as ev
from harvest.failure import Failure


class Sealed(BaseException):
    """Thrown into the tasks of a run that leaves memory. Workflow code must not catch it."""


class BrokenOff(BaseException):
    """Thrown into code by the engine to end the decision, whatever the code is doing."""


class ContinueAsNew(BaseException):
    """Raised by `workflow.continue_as_new`; ends the run with `RunContinued`."""

    def __init__(self, name: str, input: msgspec.Raw) -> None:
        super().__init__("continue as new")
        self.name, self.input = name, input


class Handler(Protocol):
    """A signal, update or query handler of a definition, payloads in and out."""

    def invoke(self, target: Any, input: msgspec.Raw) -> Any: ...

    def validate(self, target: Any, input: msgspec.Raw) -> None: ...

    def encode(self, value: Any) -> msgspec.Raw: ...


class Program(Protocol):
    """A workflow definition as the kernel needs it."""

    @property
    def name(self) -> str: ...

    @property
    def retry(self) -> ev.RetrySpec | None:
        """When a failed run begins again, unless its start said otherwise."""

    def create(self) -> Any: ...

    def run(self, target: Any, input: msgspec.Raw) -> Any: ...

    def encode_result(self, value: Any) -> msgspec.Raw: ...

    def signal(self, name: str) -> Handler | None: ...

    def update(self, name: str) -> Handler: ...

    def query(self, name: str) -> Handler: ...


class OperationHandler(Protocol):
    """An operation of an entity; its arguments are read when it is admitted, and used when its turn comes."""

    def arguments(self, input: msgspec.Raw) -> tuple[Any, ...]: ...

    def call(self, target: Any, *arguments: Any) -> Any: ...

    def encode(self, value: Any) -> msgspec.Raw: ...

    def declared(self, exc: BaseException, failure: Failure) -> Failure: ...


@runtime_checkable
class EntityProgram(Protocol):
    """An entity definition as the kernel needs it. A state is bytes (a JSON object) at rest, an object in use."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int: ...

    def initial(self) -> bytes: ...

    def load_state(self, data: bytes) -> Any: ...

    def dump_state(self, state: Any) -> bytes: ...

    def check_same(self, left: Any, loaded: Any) -> None: ...

    def upgrade(self, data: bytes, version: int) -> bytes: ...

    def bind(self, state: Any) -> Any: ...

    def state_of(self, target: Any) -> Any: ...

    def operation(self, name: str) -> OperationHandler: ...

    def query(self, name: str) -> Handler: ...

    def signal(self, name: str) -> Handler | None: ...


class RunInfo(msgspec.Struct, frozen=True, gc=False):
    """What a run knows of itself; `workflow.info()` returns it."""

    workflow_id: str
    execution_id: str
    type: str
    queue: str
    seed: int
    input: msgspec.Raw = msgspec.Raw(b"[]")
    parent_workflow_id: str | None = None
    continued_from: str | None = None
    attempt: int = 1


class Outcome(msgspec.Struct, gc=False):
    """What one activation did.

    `taken[i]` tells whether arrival i belongs into history; `rejected` holds refused updates by index;
    arrivals from `len(taken)` on were not looked at because the run closed first.
    """

    commands: list[ev.Command]
    taken: list[bool]
    rejected: dict[int, BaseException]
    closed: bool
