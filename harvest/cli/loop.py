"""Runs a coroutine on the fastest loop there is."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

try:
    from uvloop import run as _run
except ImportError:  # a platform without uvloop
    _run = asyncio.run  # type: ignore[assignment]

T = TypeVar("T")


def run_async(work: Coroutine[Any, Any, T]) -> T:
    return _run(work)
