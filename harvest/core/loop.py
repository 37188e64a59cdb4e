"""A deterministic asyncio event loop with real `asyncio.Task`s.

`call_soon` is a queue, `call_later`/`call_at` become durable timers, time is the time of the decision,
and everything that would touch the outside is refused. One loop per run; it runs only while a decision
drives it, from a plain callback of the host loop (from Python 3.14 the current task is per thread, so
a drive must not happen inside a host task).

Order: `TaskGroup` and `asyncio.wait` keep tasks in sets, whose order follows hashes. Tasks and futures
here hash to a number made from the run's seed and their creation order: the same order in each replay,
and no pile of equal hashes over many runs.
"""

from __future__ import annotations

import asyncio
import threading
from asyncio import events as asyncio_events
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from harvest.clock import MICRO
from harvest.errors import WorkflowMisuse

if TYPE_CHECKING:
    from harvest.core.instance import Instance

get_running_loop = asyncio_events._get_running_loop
set_running_loop = asyncio_events._set_running_loop


R = TypeVar("R")
STEPS_PER_DECISION = 1_000_000
LONGEST = 100 * 365 * 86_400.0
"""Seconds; a timer that is set for longer (infinity, say) is set for this."""


def micros(seconds: float) -> int:
    """Microseconds of a delay. `ValueError` for NaN; what is beyond a century is a century."""
    if seconds != seconds:
        raise ValueError("a timer cannot be set for NaN seconds")
    return round(max(-LONGEST, min(LONGEST, seconds)) * MICRO)


class _Driven(threading.local):
    """The run that is being driven on this thread. (On Python 3.11 the running loop costs a system call to ask for.)"""

    instance: Instance | None = None
    many: bool = False


driven = _Driven()


@contextmanager
def driving_many() -> Iterator[None]:
    """Around a series of drives: the host's running loop is put back once, at the end.

    Code between the drives must not ask asyncio for the running loop. Worth it on Python 3.11, where each
    change of the running loop is a system call.
    """
    previous = get_running_loop()
    driven.many = True
    try:
        yield
    finally:
        driven.many = False
        set_running_loop(previous)


async def in_callback(drive: Callable[[], R]) -> R:
    """Runs `drive` in a plain callback of the host loop and hands back what it gives: from Python 3.14 a run must not
    be driven inside a host task."""
    host = asyncio.get_running_loop()
    future: asyncio.Future[R] = host.create_future()

    def call() -> None:
        try:
            future.set_result(drive())
        except Exception as exc:
            future.set_exception(exc)

    host.call_soon(call)
    return await future


class Ready:
    """A callback waiting for its turn; what `call_soon` hands back."""

    __slots__ = ("args", "callback", "context")

    def __init__(self, callback: Callable[..., object] | None, args: tuple[Any, ...], context: Context) -> None:
        self.callback, self.args, self.context = callback, args, context

    def cancel(self) -> None:
        self.callback = None

    def cancelled(self) -> bool:
        return self.callback is None


class DurableTimer:
    """What `call_at` hands back: a timer of the run, cancellable like `asyncio.TimerHandle`."""

    __slots__ = ("args", "callback", "context", "due_us", "loop", "seq")

    def __init__(
        self,
        loop: WorkflowLoop,
        seq: int,
        due_us: int,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context | None,
    ) -> None:
        self.loop, self.seq, self.due_us = loop, seq, due_us
        self.callback: Callable[..., object] | None = callback
        self.args, self.context = args, context

    def when(self) -> float:
        return (self.due_us - self.loop.epoch_us) / MICRO

    def cancel(self) -> None:
        if self.callback is not None:
            self.callback = None
            self.loop.instance.timer_cancelled(self.seq)

    def cancelled(self) -> bool:
        return self.callback is None


class WorkflowTask(asyncio.Task[Any]):
    """A task whose hash is a number of its run, so that sets of tasks have one order."""

    def __init__(self, coro: Coroutine[Any, Any, Any], *, loop: WorkflowLoop, name: str | None, context: Context) -> None:
        self.number = loop.next_number()
        super().__init__(coro, loop=loop, name=name or f"task-{self.number}", context=context)
        self._log_destroy_pending = False

    def __hash__(self) -> int:
        return self.number


class WorkflowFuture(asyncio.Future[Any]):
    """A plain future of a run, hashed like its tasks."""

    def __init__(self, *, loop: WorkflowLoop) -> None:
        self.number = loop.next_number()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.number


def _gathering_hash(self: Any) -> int:
    """What `asyncio.gather` returns is made inside asyncio; in a workflow it hashes by first use, like the rest."""
    loop = self.get_loop()
    if not isinstance(loop, WorkflowLoop):
        return object.__hash__(self)
    number: int | None = getattr(self, "_harvest_number", None)
    if number is None:
        number = self._harvest_number = loop.next_number()
    return number


asyncio.tasks._GatheringFuture.__hash__ = _gathering_hash  # type: ignore[attr-defined]


class WorkflowLoop(asyncio.AbstractEventLoop):
    """See the module's text. `epoch_us` is the time of the first decision: `time()` counts from there."""

    def __init__(self, instance: Instance, seed: int) -> None:
        self.instance = instance
        self.ready: deque[Ready] = deque()
        self.epoch_us = 0
        self.context = Context()
        self.tasks: list[WorkflowTask] = []
        self._number = seed & 0xFFFF_FFFF_FFFF
        self._compact_at = 64

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def number_from(self, start: bytes) -> None:
        """Numbers are given out from here on: what begins now can be replayed alone."""
        self._number = int.from_bytes(start, "big")

    # --- scheduling

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        ready = Ready(callback, args, context or copy_context())
        self.ready.append(ready)
        return ready

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> Any:
        return self._timer(micros(delay), callback, args, context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        return self._timer(micros(when) + self.epoch_us - self.instance.now_us, callback, args, context)

    def _timer(self, delay_us: int, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None) -> Any:
        if delay_us <= 0:
            return self.call_soon(callback, *args, context=context)
        return self.instance.start_timer(delay_us, callback, args, context or copy_context())

    def time(self) -> float:
        return (self.instance.now_us - self.epoch_us) / MICRO

    # --- tasks and futures

    def create_future(self) -> WorkflowFuture:
        return WorkflowFuture(loop=self)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: Context | None = None, eager_start: bool | None = None, **_: Any
    ) -> Any:
        self.instance.check_writable("start a task")
        task = WorkflowTask(coro, loop=self, name=name, context=context or copy_context())
        tasks = self.tasks
        tasks.append(task)
        if len(tasks) > self._compact_at:
            self.tasks = [t for t in tasks if not t.done()]
            self._compact_at = max(64, 2 * len(self.tasks))
        return task

    def run_ready(self, budget: int) -> int:
        """Runs callbacks, in order, until none is left; returns what is left of the budget.

        A callback that raises is noted, as asyncio does. Raises `WorkflowMisuse` when the budget is spent: the
        code spins without ever blocking on the engine.
        """
        ready = self.ready
        while ready:
            item = ready.popleft()
            callback = item.callback
            if callback is None:
                continue
            budget -= 1
            if budget < 0:
                ready.clear()
                raise WorkflowMisuse(
                    f"the code did not come to rest within {STEPS_PER_DECISION:,} steps of one decision",
                    hint="does it spin on asyncio.sleep(0)? wait with workflow.wait_until(...) or a timer",
                )
            try:
                item.context.run(callback, *item.args)
            except Exception as exc:
                self.call_exception_handler({"message": f"callback {callback!r} raised", "exception": exc})
        return budget

    # --- the outside of asyncio's contract

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def get_task_factory(self) -> None:
        return None

    def set_task_factory(self, factory: Any) -> None:
        raise WorkflowMisuse("task factories (eager tasks) are not available in a workflow: order would change")

    def get_exception_handler(self) -> None:
        return None

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.instance.note_background_failure(context)

    async def shutdown_asyncgens(self) -> None: ...

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> NoReturn:  # type: ignore[override]
        refuse("threads and executors", "put the call into an activity")

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> NoReturn:  # type: ignore[override]
        refuse("call_soon_threadsafe", "send the workflow a signal instead")


def refuse(what: str, hint: str) -> NoReturn:
    """Fails the decision: `what` has no durable meaning inside a workflow."""
    error = WorkflowMisuse(f"{what}: not available inside a workflow", hint=hint)
    if driven.instance is not None:
        driven.instance.fault = error
    raise error


def _refuser(name: str) -> Callable[..., NoReturn]:
    def method(self: WorkflowLoop, *args: Any, **kwargs: Any) -> NoReturn:
        refuse(f"loop.{name}", "do I/O in an activity")

    return method


for _name in [
    "getaddrinfo",
    "getnameinfo",
    "create_connection",
    "create_server",
    "create_unix_connection",
    "create_unix_server",
    "sendfile",
    "start_tls",
    "create_datagram_endpoint",
    "connect_read_pipe",
    "connect_write_pipe",
    "subprocess_shell",
    "subprocess_exec",
    "add_reader",
    "remove_reader",
    "add_writer",
    "remove_writer",
    "sock_recv",
    "sock_recv_into",
    "sock_recvfrom",
    "sock_recvfrom_into",
    "sock_sendall",
    "sock_sendto",
    "sock_connect",
    "sock_accept",
    "sock_sendfile",
    "add_signal_handler",
    "remove_signal_handler",
    "run_forever",
    "run_until_complete",
    "set_default_executor",
]:
    setattr(WorkflowLoop, _name, _refuser(_name))
