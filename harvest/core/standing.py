"""Where a suspended run stands: the stacks of its tasks, and what each of them can be woken by. Reading changes nothing."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from harvest.core.instance import EngineFuture, Instance

FRAMES_CAP = 50


class Frame(msgspec.Struct, frozen=True):
    file: str
    line: int
    function: str
    code: str


class TaskStack(msgspec.Struct, frozen=True):
    """One task of the run, outermost frame first."""

    task: str
    frames: list[Frame]


class Awaitable(msgspec.Struct, frozen=True):
    """What the run waits for. `kind`: activity, child, external, call, timer, signal or condition; `due_us` in microseconds
    since 1970 for timers; `where` is the code of a condition."""

    kind: str
    name: str
    seq: int | None = None
    due_us: int | None = None
    where: str | None = None


def stack(instance: Instance) -> list[TaskStack]:
    """Open tasks in the order in which they began; none once the run has ended."""
    if instance.closed:
        return []
    found = []
    for task in instance.loop.tasks:
        if not task.done():
            found.append(TaskStack(task.get_name(), list(_frames(task.get_coro()))[:FRAMES_CAP]))
    return found


def _frames(awaited: Any) -> Iterator[Frame]:
    """Follows what a coroutine awaits, down to the future it is blocked on."""
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None) or getattr(awaited, "ag_frame", None)
        if frame is not None:
            code = frame.f_code
            line = linecache.getline(code.co_filename, frame.f_lineno).strip()
            yield Frame(code.co_filename, frame.f_lineno, code.co_qualname, line)
        following = getattr(awaited, "cr_await", None)
        if following is None:
            following = getattr(awaited, "gi_yieldfrom", None)
        awaited = following if following is not awaited else None


def awaitables(instance: Instance) -> list[Awaitable]:
    """Everything that would move the run, by kind."""
    if instance.closed:
        return []
    waits = [Awaitable(f.kind, f.name, seq) for seq, f in sorted(instance.pending.items()) if isinstance(f, EngineFuture)]
    waits += [Awaitable("timer", "timer", seq, timer.due_us) for seq, timer in sorted(instance.timers.items())]
    for name, futures in instance.receivers.items():
        waits += [Awaitable("signal", name) for future in futures if not future.done()]
    waits += [
        Awaitable("condition", "wait_until", where=_place(c)) for c, future, _ in instance.conditions if not future.done()
    ]
    return waits


def _place(check: Callable[[], object]) -> str | None:
    code = getattr(check, "__code__", None)
    if code is None:
        return None
    line = linecache.getline(code.co_filename, code.co_firstlineno).strip()
    return f"{code.co_filename}:{code.co_firstlineno}: {line}"


INSPECTIONS: dict[str, Callable[[Instance], Any]] = {"@stack": stack, "@awaitables": awaitables}


def inspect(instance: Instance, name: str) -> msgspec.Raw:
    """The answer to one of these questions as JSON."""
    return msgspec.Raw(msgspec.json.encode(INSPECTIONS[name](instance)))
