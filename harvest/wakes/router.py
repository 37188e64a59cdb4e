"""Who in this process wants to know what."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

Waiter = asyncio.Future[Any]


class Router:
    """Subscriptions by topic, and one-time waiters by topic and key."""

    def __init__(self) -> None:
        self._subscribers: dict[str, list[Callable[[Any], None]]] = {}
        self._waiters: dict[tuple[str, str], set[Waiter]] = {}

    def subscribe(self, topic: str, callback: Callable[[Any], None]) -> Callable[[], None]:
        """`callback(payload)` for each wake; returns the way to unsubscribe."""
        self._subscribers.setdefault(topic, []).append(callback)

        def leave() -> None:
            if callback in self._subscribers.get(topic, []):
                self._subscribers[topic].remove(callback)

        return leave

    def dispatch(self, topic: str, payload: Any) -> None:
        for callback in list(self._subscribers.get(topic, ())):
            callback(payload)

    def waiter(self, topic: str, key: str) -> Waiter:
        """A future for the next wake of this key; give it back with `forget`."""
        future: Waiter = asyncio.get_running_loop().create_future()
        self._waiters.setdefault((topic, key), set()).add(future)
        return future

    def forget(self, topic: str, key: str, future: Waiter) -> None:
        waiting = self._waiters.get((topic, key))
        if waiting is not None:
            waiting.discard(future)
            if not waiting:
                del self._waiters[topic, key]

    def wake(self, topic: str, key: str, value: Any = None) -> bool:
        """Resolves the waiters of a key; True when there were any."""
        waiting = self._waiters.pop((topic, key), None)
        if not waiting:
            return False
        for future in waiting:
            if not future.done():
                future.set_result(value)
        return True
