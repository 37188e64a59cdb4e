"""One process per directory, by `flock`: it goes with the process, whatever ends it.

POSIX record locks would vanish when any descriptor of the file is closed, so they are not used. Somebody may have
replaced the file between opening and locking it: the lock counts only when the name still leads to the locked inode.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from pathlib import Path

NAME = "lock"


class DirectoryBusy(Exception):
    """Another process has the directory; `holder` says which, as far as it told."""

    def __init__(self, directory: Path, holder: str) -> None:
        super().__init__(f"{directory} is in use by {holder}; give each process a directory of its own")
        self.directory, self.holder = directory, holder


class DirectoryLock:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._fd: int | None = None

    def acquire(self) -> None:
        """Raises `DirectoryBusy`, or `OSError` where the directory cannot be used."""
        path = self.directory / NAME
        for _ in range(100):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0), 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(fd).st_ino != os.stat(path).st_ino:
                    raise FileNotFoundError
            except BlockingIOError:
                holder = _holder(fd)
                os.close(fd)
                raise DirectoryBusy(self.directory, holder) from None
            except FileNotFoundError:
                os.close(fd)
                continue
            except BaseException:
                os.close(fd)
                raise
            os.ftruncate(fd, 0)
            os.pwrite(fd, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
            self._fd = fd
            return
        raise OSError(f"cannot lock {path}: it is replaced again and again")

    def release(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


def _holder(fd: int) -> str:
    try:
        told = json.loads(os.pread(fd, 500, 0))
        return f"process {int(told['pid'])} on {str(told['host'])[:100]}"
    except (ValueError, KeyError, TypeError, OSError):
        return "another process"
