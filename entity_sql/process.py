"""One child process, as its parent sees it: start it, ask it, kill it."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

import msgspec

from .errors import SqlError, SqlOverrun, SqlRefused
from .wire import HEAD, Failed, Reply, frame, reply_of

START = 10.0
"""Seconds in which a child must say that it is there."""
REPLY_OVERHEAD = 4 * 1024 * 1024


class Gone(Exception):
    """The child ended, or was killed, before it answered."""


class Child:
    """Not shared: one request at a time. `address_space` in bytes beyond what the interpreter takes."""

    def __init__(self, address_space: int, largest_reply: int) -> None:
        self.address_space, self.largest_reply = address_space, largest_reply + REPLY_OVERHEAD
        self.process: subprocess.Popen[bytes] | None = None
        self.socket: socket.socket | None = None
        self.asked = False

    async def start(self) -> None:
        """Raises `Gone` when it does not come up."""
        try:
            connection = await self._spawned()
            async with asyncio.timeout(START):
                hello = await asyncio.get_running_loop().sock_recv(connection, 1)
            if not hello:
                raise Gone("a child ended as it started")
        except (TimeoutError, OSError) as exc:
            await self.kill()
            raise Gone(f"a child did not start: {exc}") from exc
        except BaseException:
            await self.kill()
            raise

    async def _spawned(self) -> socket.socket:
        """Whoever gives up while a process comes about still has to end it: nobody else knows of it."""
        spawning = asyncio.ensure_future(asyncio.to_thread(self._spawn))
        given_up: asyncio.CancelledError | None = None
        while not spawning.done():
            try:
                await asyncio.wait({spawning})
            except asyncio.CancelledError as exc:
                given_up = exc
        self.process, self.socket = spawning.result()
        if given_up is not None:
            raise given_up
        return self.socket

    def _spawn(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            process = subprocess.Popen(  # noqa: S603  (our own interpreter and file)
                [sys.executable, "-I", str(Path(__file__).parent / "child.py"), str(theirs.fileno()), str(self.address_space)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={},
                start_new_session=True,
            )
        return process, ours

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    async def ask(self, request: msgspec.Struct, seconds: float) -> Reply:
        """Raises `Gone`; the child is killed when it has not answered after `seconds`."""
        loop = asyncio.get_running_loop()
        if self.socket is None or self.asked:
            raise Gone("it was not started")
        sent = frame(request)
        self.asked = True
        try:
            async with asyncio.timeout(seconds):
                await loop.sock_sendall(self.socket, sent)
                size = int.from_bytes(await self._receive(loop, self.socket, HEAD), "big")
                if size > self.largest_reply:
                    raise Gone("its answer is larger than it can be")
                reply = reply_of(await self._receive(loop, self.socket, size))
                self.asked = False
                return reply
        except (TimeoutError, OSError, msgspec.MsgspecError) as exc:
            self.asked = False
            await self.kill()
            raise Gone(f"no answer after {seconds:g} s" if isinstance(exc, TimeoutError) else str(exc)) from exc
        except BaseException:  # whoever asked has left: what is still to come would answer the next one
            self.asked = False
            await self.kill()
            raise

    async def _receive(self, loop: asyncio.AbstractEventLoop, connection: socket.socket, size: int) -> bytes:
        first = await loop.sock_recv(connection, size)
        if len(first) == size:
            return first
        parts = bytearray(first)
        while len(parts) < size:
            part = await loop.sock_recv(connection, min(size - len(parts), 1 << 20))
            if not part:
                raise OSError("it ended")
            parts += part
        return bytes(parts)

    async def kill(self) -> None:
        """The process ends now. Who waits for its answer sees that, and closes the socket: it must not be closed under him,
        its number may be another one's by then."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
        if not self.asked:
            connection, self.socket = self.socket, None
            if connection is not None:
                connection.close()
        if process is not None:
            await asyncio.shield(asyncio.to_thread(process.wait))


def answered(reply: Reply) -> Reply:
    """The reply, unless it is a failure: that is raised."""
    if isinstance(reply, Failed):
        place = {"line": reply.line, "column": reply.column}
        if reply.kind == "overrun":
            raise SqlOverrun(reply.message, limit=reply.limit, **place)
        raise (SqlRefused if reply.kind == "refused" else SqlError)(reply.message, **place)
    return reply
