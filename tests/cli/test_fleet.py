"""The operator's view from the command line."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path

from harvest import Worker, WorkerConfig, activity, workflow

ROOT = Path(__file__).parents[2]


@workflow.defn
async def waits() -> str:
    return await workflow.receive("go", str)


@activity.defn
async def extra() -> None: ...


async def harvest_(dsn: str, *args: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "harvest.cli.main", *args, "--database-url", dsn),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def test_owner_status_draws_the_map(client, remote, dsn):
    async with Worker(client, definitions=[waits]) as one, Worker(remote, definitions=[waits]) as two:
        while one.keeper.partitions != 256 or two.keeper.partitions != 256:
            await asyncio.sleep(0.02)
        code, out, _ = await harvest_(dsn, "owner", "status")
        assert code == 0 and "owner mode since" in out and "512 of 512 partitions owned by 2 workers" in out
        letters = "".join(re.findall(r"^ *\d+ ([AB.?]{64})$", out, re.M))
        assert sorted((letters.count("A"), letters.count("B"))) == [256, 256] and len(letters) == 512
        _, out, _ = await harvest_(dsn, "owner", "status", "--json", "--queue", "default")
        body = json.loads(out)
        [pool] = body["pools"]
        assert len(pool["owners"]) == 512 and set(pool["owners"]) == {w["worker_id"] for w in body["workers"]}
        assert all(epoch >= 1 for epoch in pool["epochs"])
        assert {w["config"]["max_batch"] for w in body["workers"]} == {256}
        code, out, _ = await harvest_(dsn, "fleet")
        assert code == 0 and out.count("default 256") == 2


async def test_the_switch_and_the_sticky_report(client, dsn):
    code, _, err = await harvest_(dsn, "owner", "disable")
    assert code == 0, err
    code, _, err = await harvest_(dsn, "owner", "enable")
    assert code == 1 and "no live worker" in err
    async with Worker(client, definitions=[waits]):
        handle = await client.start(waits, id="w")
        while (await handle.describe()).decisions < 1:
            await asyncio.sleep(0.02)
        _, out, _ = await harvest_(dsn, "sticky", "report", "w")
        assert "normal" in out and "first" in out and "next: state: parked" in out
        await handle.signal("go", "on")
        assert await handle.result(timeout=20) == "on"
        _, out, _ = await harvest_(dsn, "sticky", "report", "w", "--json")
        report = json.loads(out)
        assert [(d["scheduled"], d["replay_mode"]) for d in report["decisions"]] == [("normal", "first"), ("sticky", "warm")]
        assert report["workers"] == 1 and report["windows_timed_out"] == [] and report["task"] is None
        _, out, _ = await harvest_(dsn, "sticky", "figures", "--json")
        assert {"active_sticky_runs", "hit_rate_last_minute", "capacity_pressure_tasks"} <= set(json.loads(out))
        code, out, _ = await harvest_(dsn, "owner", "enable")
        assert code == 0 and "owner mode is on" in out
        _, out, _ = await harvest_(dsn, "owner", "enable", "--json")
        assert json.loads(out) == {"mode": "owner", "changed": False}
    code, _, err = await harvest_(dsn, "sticky", "report", "nobody")
    assert code == 1 and "no run has" in err


async def test_the_doctor_names_what_is_wrong_and_its_remedy(client, remote, dsn):
    handle = await client.start(waits, id="w", build_id="v9")
    code, out, _ = await harvest_(dsn, "doctor")
    assert code == 1 and "no worker is alive" in out
    assert "pinned to build 'v9'" in out and "HARVEST_BUILD_ID=v9 harvest worker" in out
    async with (
        Worker(client, definitions=[waits], config=WorkerConfig(build_id="v9")) as owner,
        Worker(remote, definitions=[waits, extra], config=WorkerConfig(build_id="v10")) as other,
    ):
        while not owner.keeper.partitions or not other.keeper.refusals:
            await asyncio.sleep(0.02)
        await handle.signal("go", "on")
        await handle.result(timeout=20)
        code, out, _ = await harvest_(dsn, "doctor", "--json")
        found = {f["what"]: f for f in json.loads(out)}
        [refused] = [f for what, f in found.items() if "refused ownership" in what]
        assert refused["level"] == "warning" and "activities extra" in refused["what"] and refused["remedy"]
        assert code == 0 and not [f for f in found.values() if f["level"] == "error"]
        assert any("all partitions of 'default'" in what for what in found)
