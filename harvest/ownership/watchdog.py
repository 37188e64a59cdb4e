"""Names the code that holds the event loop, and frees the loop when it stays stuck (R-2)."""

from __future__ import annotations

import ctypes
import os
import sys
import sysconfig
import threading
import traceback
from types import FrameType
from typing import Any

from harvest.core.program import BrokenOff

PATIENCE = 2.0
"""Seconds after which code that holds the loop is named."""
_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
_LIBRARY = tuple({sysconfig.get_path("stdlib") + os.sep, sysconfig.get_path("platlib") + os.sep, "<frozen"})


class LoopStuck(BrokenOff):
    """Raised inside code that held the loop for a whole lease. Only the decision fails."""


class Driving:
    """Which run the decider is driving, for the watchdog of another thread. `begin` and `end` frame each drive."""

    __slots__ = ("_lock", "interrupted", "run", "thread_id")

    def __init__(self) -> None:
        self.run: Any = None
        self.thread_id = 0
        self.interrupted = False
        self._lock = threading.Lock()

    def begin(self, run: Any) -> None:
        self.run = run

    def end(self) -> None:
        """After this no interrupt can come: one that was sent is raised here at the latest."""
        with self._lock:
            self.run = None
        if self.interrupted:
            self.interrupted = False
            _give_way()

    def interrupt(self, run: Any) -> bool:
        """From the other thread: raises `LoopStuck` in the drive of `run`, if that is still going on."""
        with self._lock:
            if run is None or self.run is not run or not self.thread_id:
                return False
            self.interrupted = True
            return _raise_in(self.thread_id, LoopStuck)


def _raise_in(thread_id: int, error: type[BaseException]) -> bool:
    """See `PyThreadState_SetAsyncExc` in the C API of Python."""
    return bool(ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), ctypes.py_object(error)) == 1)


def _give_way() -> None:
    """A few calls and jumps, at which a pending exception of this thread is raised."""
    for _ in range(100):
        abs(_)


def culprit(frame: FrameType | None) -> tuple[str, str]:
    """(where, stack) of a blocked thread: the innermost frame that is neither ours nor the library's, as file:line."""
    if frame is None:
        return "?", ""
    stack = traceback.extract_stack(frame)
    theirs = [f for f in stack if not f.filename.startswith((_OURS, *_LIBRARY)) and "site-packages" not in f.filename]
    last = theirs[-1] if theirs else stack[-1]
    return f"{last.filename}:{last.lineno} in {last.name}", "".join(traceback.format_list(stack[-12:]))


def look_at(thread_id: int) -> tuple[str, str]:
    """`culprit` of a thread as it stands now."""
    return culprit(sys._current_frames().get(thread_id))
