"""Peers to measure beside: each has a side of its own, run in a venv of its own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PACKAGES = {"dbos": ["dbos", "psycopg[binary]"], "absurd": ["absurd-sdk", "absurdctl"]}
WORKLOADS = {"dbos": ("W1", "W2", "W3", "W4", "W5"), "absurd": ("W1", "W2", "W3", "W4")}


class Peer:
    """A peer's process; `run(workload)` measures one round there."""

    def __init__(self, name: str, dsn: str) -> None:
        self.name, self.dsn = name, dsn
        self.process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Peer:
        python = prepare(self.name)
        side = Path(__file__).with_name(f"{self.name}_side.py")
        self.process = await asyncio.create_subprocess_exec(
            python, str(side), self.dsn, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        await self._answer()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.terminate()
            await self.process.wait()

    async def run(self, workload: str) -> dict[str, Any]:
        assert self.process is not None and self.process.stdin is not None
        self.process.stdin.write(f"{workload}\n".encode())
        await self.process.stdin.drain()
        return await self._answer()

    async def _answer(self) -> dict[str, Any]:
        assert self.process is not None and self.process.stdout is not None
        while True:
            line = await self.process.stdout.readline()
            if not line:
                raise RuntimeError(f"{self.name} ended; run its side by hand to see why")
            if line.startswith(b"{"):
                answer: dict[str, Any] = json.loads(line)
                return answer


def prepare(name: str) -> str:
    """The python of the peer's venv, made when missing."""
    venv = Path(__file__).parents[2] / ".venv-peers" / name
    python = venv / "bin" / "python"
    if not (venv / ".installed").exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        command = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *PACKAGES[name]]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONWARNINGS": "ignore"})
        (venv / ".installed").touch()
    return str(python)
