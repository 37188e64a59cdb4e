"""Embedded Postgres, migrations, the dashboard, and a worker process that is swapped when the code changes.

Before a swap the open runs are replayed against the new code in a process of its own. What would break is
named, and the old worker stays: a save never damages a run.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from watchfiles import PythonFilter, awatch

from harvest.client import connect
from harvest.config import ServerConfig
from harvest.errors import HarvestError
from harvest.hub.database import Database
from harvest.hub.embedded import EmbeddedPostgres
from harvest.hub.migrate import migrate


class DevServer:
    """`run` works until SIGINT or SIGTERM."""

    def __init__(
        self, modules: list[str], *, queue: str, data: Path, url: str, log_level: str, console: Console, port: int | None = None
    ) -> None:
        self.port = port
        self.modules, self.queue, self.data, self.url, self.log_level = modules, queue, data, url, log_level
        self.console = console
        self.worker: asyncio.subprocess.Process | None = None
        self.stopping = asyncio.Event()

    async def run(self) -> None:
        postgres: EmbeddedPostgres | None = None
        if not self.url:
            postgres = EmbeddedPostgres(self.data)
            self.url = postgres.start()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.stopping.set)
        try:
            async with Database(self.url) as db:
                await migrate(db, lambda m: self.say(f"applied migration {m.version:04d} {m.name}"))
            self.say(f"hub   {self.url}")
            self.say(f'try   HARVEST_DATABASE_URL="{self.url}" harvest run list')
            dashboard = asyncio.create_task(self._dashboard())
            await self.reload()
            await self._watch()
            await dashboard
        finally:
            self.stopping.set()
            await self.stop_worker()
            if postgres is not None:
                postgres.stop()

    async def _dashboard(self) -> None:
        """HTTP API and dashboard; without them the rest is worth having, too."""
        try:
            from harvest.server.serve import serve  # noqa: PLC0415  an optional dependency
        except ImportError as exc:
            self.say(f"no dashboard: {exc.name} is not installed (pip install 'harvest-engine[server]')")
            return
        given = {} if self.port is None else {"port": self.port}
        try:
            async with connect(self.url) as client:
                await serve(client, ServerConfig(**given), say=lambda text: self.say(f"open  {text}"), stopping=self.stopping)
        except HarvestError as exc:
            self.say(f"no dashboard: {exc.message}" + (f"; {exc.hint}" if exc.hint else ""))

    def say(self, text: str) -> None:
        self.console.print(f"[bold green]dev[/] {escape(text)}", highlight=False, soft_wrap=True)

    async def _watch(self) -> None:
        async for changes in awatch(os.getcwd(), watch_filter=PythonFilter(), stop_event=self.stopping, debounce=200):
            names = sorted({path.removeprefix(os.getcwd() + os.sep) for _, path in changes})
            self.say(f"changed: {', '.join(names[:4])}{' …' if len(names) > 4 else ''}")
            await self.reload()

    async def reload(self) -> bool:
        """Swaps the worker if the new code loads and every open run fits it; True when it did.

        Where none is running, code that loads gets one all the same: without it nobody could end the runs that do not fit.
        """
        verdict = await self.check()
        if verdict == "unloadable" or (verdict == "breaks" and self.worker is not None):
            self.say("the running worker stays" if self.worker is not None else "no worker yet: mend the code and save")
            return False
        again = self.worker is not None
        await self.stop_worker()
        await self.start_worker()
        if verdict == "breaks":
            self.say("started all the same: these wait for code that fits; `harvest run terminate ID` ends one")
        elif again:
            self.say("reloaded")
        return True

    def _command(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "harvest.cli.main", *args]

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "HARVEST_DATABASE_URL": self.url}

    def _entity_sql(self) -> dict[str, str]:
        """SQL over entities works without any setting here; what the environment says comes first."""
        cache = os.path.join(os.getcwd(), ".harvest", f"cache-{self.queue}")
        return {"HARVEST_OWNER_DISK_CACHE": cache, "HARVEST_OWNER_ENTITY_SQL": "1"}

    async def check(self) -> str:
        """Replays the open runs against the code on disk, and names what would break: fits, breaks or unloadable.

        A run that has decided nothing breaks nothing: it waits for its code.
        """
        process = await asyncio.create_subprocess_exec(
            *self._command("replay", "--open", "--json", "--queue", self.queue, *self.modules),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._environment(),
        )
        out, err = await process.communicate()
        report = self._report(out)
        if process.returncode != 0 and not report.get("broken"):
            self.console.print(self._problem(err), highlight=False, markup=False)
            return "unloadable"
        broken = report.get("broken", [])
        for each in broken:
            word = "breaks" if each["decisions"] else "waits "
            self.console.print(f"[bold red]{word}[/] {escape(each['type'])} {escape(each['workflow_id'])}", highlight=False)
            self.console.print(f"       {escape(each['error'])}", highlight=False)
        self.say(f"{report.get('replayed', 0) - len(broken)} open runs fit the code")
        return "breaks" if any(each["decisions"] for each in broken) else "fits"

    def _report(self, out: bytes) -> dict[str, Any]:
        try:
            report: dict[str, Any] = json.loads(out)
        except ValueError:
            return {}
        return report

    def _problem(self, err: bytes) -> str:
        """The last line that a failed check wrote, as a person reads it."""
        lines = err.decode(errors="replace").strip().splitlines()
        try:
            body = json.loads(lines[-1])
        except (ValueError, IndexError):
            return "\n".join(lines[-20:])
        return f"{body['message']}" + (f"\n  hint: {body['hint']}" if body.get("hint") else "")

    async def start_worker(self) -> None:
        self.worker = await asyncio.create_subprocess_exec(
            *self._command("worker", "--queue", self.queue, "--log-level", self.log_level, *self.modules),
            env={**self._entity_sql(), **self._environment(), "HARVEST_STOP_AT_EOF": "1"},
            stdin=asyncio.subprocess.PIPE,  # the worker ends when this process does, however that happens
        )
        self._minder = asyncio.create_task(self._mind(self.worker))

    async def _mind(self, worker: asyncio.subprocess.Process) -> None:
        """A worker that ends by itself is started again."""
        code = await worker.wait()
        if worker is self.worker and not self.stopping.is_set():
            self.say(f"the worker ended (exit code {code}); starting another")
            await asyncio.sleep(1)
            if worker is self.worker:
                await self.start_worker()

    async def stop_worker(self) -> None:
        worker, self.worker = self.worker, None
        if worker is not None and worker.returncode is None:
            worker.terminate()
            try:
                await asyncio.wait_for(worker.wait(), 15)
            except TimeoutError:
                worker.kill()
                await worker.wait()
