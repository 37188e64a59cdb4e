"""The loop of a child process: a request, a reply, until the other end of the socket is gone.

Run as a file, so that starting a child imports this library and nothing around it. The socket is the descriptor named by
the first argument; the second is how many bytes of address space the process may take beyond what it starts with.
"""

# ruff: noqa: PLC0415  (this library can only be imported once it has been loaded)
from __future__ import annotations

import contextlib
import importlib.util
import os
import resource
import socket
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

HEAD = 4


def load() -> ModuleType:
    """This library as the package `entity_sql`, wherever it is installed."""
    here = Path(__file__).parent
    spec = importlib.util.spec_from_file_location("entity_sql", here / "__init__.py", submodule_search_locations=[str(here)])
    if spec is None or spec.loader is None:
        raise ImportError(f"no library at {here}")
    package = importlib.util.module_from_spec(spec)
    sys.modules["entity_sql"] = package  # its parts are imported one by one: a child needs no pool
    return package


def confine(address_space: int) -> None:
    """No files, no core, a bounded address space, and the lowest priority."""
    with contextlib.suppress(OSError, ValueError):
        os.nice(5)
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if os.path.exists("/proc/self/statm") else 0
    for kind, most in (
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 32),
        (resource.RLIMIT_AS, pages * resource.getpagesize() + address_space if pages else resource.RLIM_INFINITY),
    ):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (most, most))


def receive(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 1 << 20))
        if not part:
            os._exit(0)
        parts += part
    return bytes(parts)


def main() -> None:
    load()
    import apsw

    from entity_sql.explain import Trouble  # type: ignore[import-not-found]
    from entity_sql.serve import Server  # type: ignore[import-not-found]
    from entity_sql.wire import Failed, frame, request_of  # type: ignore[import-not-found]

    connection = socket.socket(fileno=int(sys.argv[1]))
    server: Any = Server()
    apsw.Connection(":memory:").execute("select json_array(1)").fetchall()  # what is loaded late is loaded now
    confine(int(sys.argv[2]))
    connection.sendall(b"\x00")
    while True:
        body = receive(connection, int.from_bytes(receive(connection, HEAD), "big"))
        try:
            reply = server.serve(request_of(body))
        except Trouble as exc:
            reply = Failed(exc.kind, exc.message, exc.limit, exc.line, exc.column)
        except MemoryError:
            reply = Failed("overrun", "it needs more memory than it may have", "memory")
        except Exception as exc:
            reply = Failed("error", f"{type(exc).__name__}: {exc}"[:2_000])
        connection.sendall(frame(reply))


if __name__ == "__main__":
    main()
