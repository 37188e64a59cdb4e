"""The command line as people and scripts meet it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FLOWS = """
import asyncio
from harvest import activity, workflow

@activity.defn(local=True)
async def shout(word: str) -> str:
    return word.upper()

@workflow.defn
class Talk:
    def __init__(self) -> None:
        self.words: list[str] = []

    @workflow.run
    async def run(self, until: int) -> list[str]:
        {first}
        await workflow.wait_until(lambda: len(self.words) >= until)
        return self.words

    @workflow.signal
    async def say(self, word: str) -> None:
        self.words.append(await shout(word))

    @workflow.query
    def count(self) -> int:
        return len(self.words)

    @workflow.update
    def clear(self) -> int:
        n = len(self.words)
        self.words.clear()
        return n
"""


@pytest.fixture
def shop(tmp_path):
    """A directory with a module of definitions, rewritten by calling it."""

    def write(first: str = "pass", name: str = "flows.py") -> Path:
        (tmp_path / name).write_text(textwrap.dedent(FLOWS).replace("{first}", first))
        return tmp_path

    write()
    write.directory = tmp_path  # type: ignore[attr-defined]
    return write


async def spawn(shop, dsn: str, *args: str, **options) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "harvest.cli.main", *args),
        cwd=shop.directory if hasattr(shop, "directory") else shop,
        env={**os.environ, "HARVEST_DATABASE_URL": dsn, "COLUMNS": "200", "PYTHONUNBUFFERED": "1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        **options,
    )


async def harvest(shop, dsn: str, *args: str) -> tuple[int, str, str]:
    process = await spawn(shop, dsn, *args)
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_a_run_from_start_to_result(dsn, shop, tmp_path):
    worker = await spawn(shop, dsn, "worker", "flows")
    try:
        code, out, err = await harvest(shop, dsn, "run", "start", "Talk", "2", "--id", "t", "--json")
        assert code == 0, err
        assert json.loads(out)["workflow_id"] == "t"
        code, _, err = await harvest(shop, dsn, "run", "start", "Talk", "2", "--id", "t")
        assert code == 1 and "taken" in err and "use_existing" in err
        assert (await harvest(shop, dsn, "run", "signal", "t", "say", "hello"))[0] == 0
        assert (await harvest(shop, dsn, "run", "query", "t", "count", "--json"))[1].strip() == "1"
        assert (await harvest(shop, dsn, "run", "update", "t", "clear", "--json"))[1].strip() == "1"
        for word in ("a", "b"):
            await harvest(shop, dsn, "run", "signal", "t", "say", word)
        code, out, _ = await harvest(shop, dsn, "run", "result", "t", "--json")
        assert code == 0 and json.loads(out) == ["A", "B"]
        listed = json.loads((await harvest(shop, dsn, "run", "list", "--state", "COMPLETED", "--json"))[1])
        assert [run["workflow_id"] for run in listed] == ["t"]
        shown = json.loads((await harvest(shop, dsn, "run", "show", "t", "--json"))[1])
        assert shown["state"] == "COMPLETED" and shown["result"] == ["A", "B"]
        events = json.loads((await harvest(shop, dsn, "run", "history", "t", "--json"))[1])
        assert events[-1]["type"] == "RunCompleted"
        assert "RunCompleted" in (await harvest(shop, dsn, "run", "history", "t"))[1]
        file = str(tmp_path / "t.json")
        assert (await harvest(shop, dsn, "run", "history", "t", "--export", file))[0] == 0
        code, out, _ = await harvest(shop, dsn, "replay", file, "flows")
        assert code == 0 and "1 of 1 histories fit" in out
        await harvest(shop, dsn, "run", "start", "Talk", "9", "--id", "u")
        assert (await harvest(shop, dsn, "run", "terminate", "u", "--reason", "enough"))[0] == 0
        code, _, err = await harvest(shop, dsn, "run", "result", "u", "--json")
        assert code == 1 and json.loads(err)["error"] == "WorkflowFailedError"
    finally:
        worker.send_signal(signal.SIGTERM)
        assert await worker.wait() == 0


async def test_replay_names_what_would_break(dsn, shop):
    worker = await spawn(shop, dsn, "worker", "flows")
    await harvest(shop, dsn, "run", "start", "Talk", "2", "--id", "t")
    await harvest(shop, dsn, "run", "signal", "t", "say", "hello")
    assert (await harvest(shop, dsn, "run", "query", "t", "count"))[0] == 0
    worker.send_signal(signal.SIGTERM)
    await worker.wait()
    directory = shop("await asyncio.sleep(5)")
    code, out, _ = await harvest(directory, dsn, "replay", "--open", "flows", "--json")
    report = json.loads(out)
    assert code == 1 and report["replayed"] == 1
    assert report["broken"][0]["workflow_id"] == "t" and "TimerStarted" in report["broken"][0]["error"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("worker", "nowhere"), "there is no module 'nowhere'"),
        (("worker", "broken"), "does not import: ZeroDivisionError"),
        (("worker", "needs"), "imports 'not_installed_anywhere', which is not installed"),
        (("worker", "empty"), "defines no workflow, entity or activity"),
        (("worker", "flows", "--log-level", "loud"), "'loud' is not a level"),
        (("replay", "flows"), "nothing to replay"),
        (("replay", "missing.json", "flows"), "cannot read 'missing.json'"),
        (("run", "start", "Talk"), "no workflow id given"),
        (("run", "list", "--state", "open"), "must be one of RUNNING"),
        (("run", "show", "x", "--execution-id", "seven"), "'seven' is not a uuid"),
    ],
)
async def test_what_is_asked_wrongly_is_named(dsn, shop, tmp_path, args, said):
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "needs.py").write_text("import not_installed_anywhere")
    (tmp_path / "empty.py").write_text("x = 1")
    code, _, err = await harvest(shop, dsn, *args)
    assert code == 2, err
    assert said in re.sub(r"\s+", " ", err), err


async def test_settings_are_checked_and_named(dsn, shop, monkeypatch):
    monkeypatch.setenv("HARVEST_MAX_ACTIVITY_SLOTS", "many")
    code, _, err = await harvest(shop, dsn, "worker", "flows")
    assert code == 2 and "max_activity_slots" in err and "many" in err


async def test_migrate_plans_then_does(server, shop):
    import uuid

    import asyncpg

    from tests.conftest import with_database

    name = f"m_{uuid.uuid4().hex[:12]}"
    connection = await asyncpg.connect(server)
    await connection.execute(f'create database "{name}"')
    dsn = with_database(server, name)
    try:
        code, _, err = await harvest(shop, dsn, "run", "list")
        assert code == 1 and "harvest migrate" in err
        code, out, _ = await harvest(shop, dsn, "migrate", "--plan", "--json")
        assert code == 0 and json.loads(out)[0]["name"] == "engine"
        assert "applied 0001 engine" in (await harvest(shop, dsn, "migrate"))[1]
        assert "up to date" in (await harvest(shop, dsn, "migrate"))[1]
    finally:
        await connection.execute(f'drop database "{name}" with (force)')
        await connection.close()


async def read_until(process: asyncio.subprocess.Process, text: str) -> str:
    assert process.stdout is not None
    seen = ""
    while text not in seen:
        line = await asyncio.wait_for(process.stdout.readline(), 30)
        assert line, f"ended before {text!r}:\n{seen}"
        seen += line.decode()
    return seen


@pytest.mark.timeout(90)
async def test_dev_reloads_on_save_unless_an_open_run_would_break(dsn, shop):
    process = await spawn(shop, dsn, "dev", "flows", "--port", "0", "--database-url", dsn, "--log-level", "warning")
    try:
        said = await read_until(process, "open runs fit the code")
        assert (await harvest(shop, dsn, "run", "start", "Talk", "1", "--id", "t"))[0] == 0
        code, out, err = await harvest(shop, dsn, "run", "query", "t", "count", "--json")
        assert code == 0 and out.strip() == "0", err
        shop("await asyncio.sleep(0.01)")
        said += await read_until(process, "the running worker stays")
        assert "open  http://127.0.0.1:" in said
        assert "breaks Talk t" in said and "TimerStarted" in said
        shop("pass  # as it was")
        await read_until(process, "reloaded")
        directory = shop("pass  # as it was")
        await harvest(directory, dsn, "run", "signal", "t", "say", "x")
        code, out, _ = await harvest(directory, dsn, "run", "result", "t", "--json")
        assert json.loads(out) == ["X"]
        (directory / "flows.py").write_text("def broken(:\n")
        assert "SyntaxError" in await read_until(process, "the running worker stays")
    finally:
        process.send_signal(signal.SIGINT)
        await asyncio.wait_for(process.wait(), 20)


async def test_a_failed_run_can_be_shown(dsn, shop):
    worker = await spawn(shop, dsn, "worker", "flows")
    try:
        await harvest(shop, dsn, "run", "start", "Talk", "not a number", "--id", "bad")
        code, _, err = await harvest(shop, dsn, "run", "result", "bad")
        assert (code == 1 and "PayloadError" in err) or "valid integer" in err
        code, out, err = await harvest(shop, dsn, "run", "show", "bad", "--json")
        assert code == 0, err
        assert json.loads(out)["failure"]["type"] == "PayloadError"
        code, out, err = await harvest(shop, dsn, "run", "show", "bad")
        assert code == 0 and "PayloadError" in out, err
        long = "x" * 300
        await harvest(shop, dsn, "run", "start", "Talk", "1", "--id", "long")
        await harvest(shop, dsn, "run", "signal", "long", "say", long)
        code, out, _ = await harvest(shop, dsn, "run", "result", "long")
        assert json.loads(out) == [long.upper()], "what goes into a pipe is not wrapped"
    finally:
        worker.send_signal(signal.SIGTERM)
        await worker.wait()


@pytest.mark.timeout(60)
async def test_dev_starts_another_worker_and_takes_its_worker_along(dsn, shop):
    process = await spawn(shop, dsn, "dev", "flows", "--port", "0", "--database-url", dsn, "--log-level", "warning")
    try:
        await read_until(process, "open runs fit the code")
        listing = "select pid from harvest.workers where state = 'active' and pid <> $1"
        import asyncpg

        connection = await asyncpg.connect(dsn)

        async def worker_pid(other_than: int) -> int:
            while True:
                pid = await connection.fetchval(listing, other_than)
                if pid is not None:
                    return pid
                await asyncio.sleep(0.05)

        first = await worker_pid(0)
        os.kill(first, signal.SIGKILL)
        await read_until(process, "starting another")
        second = await worker_pid(first)
        process.kill()
        await process.wait()
        while Path(f"/proc/{second}").exists() and "Z" not in Path(f"/proc/{second}/stat").read_text().rpartition(")")[2][:3]:
            await asyncio.sleep(0.05)
        await connection.close()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
