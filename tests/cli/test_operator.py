"""The person on call, on the command line: contain a run, look into it, do it again."""

from __future__ import annotations

import json
import re
import signal

import pytest

from tests.cli.test_commands import harvest, shop, spawn

__all__ = ["shop"]


async def ask(shop, dsn, *args, code=0):
    got, out, err = await harvest(shop, dsn, *args, "--json")
    assert got == code, err
    return json.loads(out if code == 0 else err)


async def test_a_run_is_contained_and_done_again(dsn, shop):
    worker = await spawn(shop, dsn, "worker", "flows")
    try:
        await ask(shop, dsn, "run", "start", "Talk", "2", "--id", "t 1", "--attempts", "3", "--chain-timeout", "600")
        await ask(shop, dsn, "run", "signal", "t 1", "say", "hello")
        assert await ask(shop, dsn, "run", "pause", "t 1") == {"paused": "t 1"}
        found = await ask(shop, dsn, "run", "diagnose", "t 1")
        assert (found["code"], found["command"]) == ("paused", "harvest run resume 't 1'")
        _, out, _ = await harvest(shop, dsn, "run", "diagnose", "t 1")
        assert "it is paused since" in out and "harvest run resume 't 1'" in out
        assert (await ask(shop, dsn, "run", "stack", "t 1"))[0]["task"] == "main"
        assert (await ask(shop, dsn, "run", "awaitables", "t 1"))[0]["kind"] == "condition"
        await ask(shop, dsn, "run", "resume", "t 1")
        assert (await ask(shop, dsn, "run", "diagnose", "t 1"))["code"] == "condition"
        new = await ask(shop, dsn, "run", "reset", "t 1", "--decision", "1", "--signals", "drop")
        for word in ("a", "b"):
            await ask(shop, dsn, "run", "signal", "t 1", "say", word)
        assert await ask(shop, dsn, "run", "result", "t 1") == ["A", "B"]
        links = await ask(shop, dsn, "run", "chain", "t 1")
        assert [(link["link"], link["state"]) for link in links] == [("start", "TERMINATED"), ("reset", "COMPLETED")]
        assert links[1]["execution_id"] == new["execution_id"]
        assert "reset from decision 1" in (await harvest(shop, dsn, "run", "chain", "t 1"))[1]
        spans = await ask(shop, dsn, "run", "timeline", "t 1")
        assert spans[0]["outcome"] == "COMPLETED"
        assert "━" in (await harvest(shop, dsn, "run", "timeline", "t 1"))[1]
        await ask(shop, dsn, "run", "triage", "t 1", "it was nothing", "--status", "resolved", "--author", "ada")
        assert (await ask(shop, dsn, "run", "triage", "t 1"))[0]["note"] == "it was nothing"
        await ask(shop, dsn, "run", "hold", "t 1", "case 17")
        assert (await ask(shop, dsn, "run", "erase", "t 1", "--yes", code=1))["error"] == "EraseRefused"
        await ask(shop, dsn, "run", "hold", "t 1", "--lift")
        assert (await ask(shop, dsn, "run", "erase", "t 1", "--yes"))["erased"] == "t 1"
        assert (await ask(shop, dsn, "run", "result", "t 1", code=1))["error"] == "PayloadErased"
        assert (await ask(shop, dsn, "run", "rerun", "t 1", code=1))["error"] == "RerunRefused"
    finally:
        worker.send_signal(signal.SIGTERM)
        assert await worker.wait() == 0


async def test_many_runs_at_once(dsn, shop):
    worker = await spawn(shop, dsn, "worker", "flows")
    try:
        for n in range(3):
            await ask(shop, dsn, "run", "start", "Talk", "1", "--id", f"t-{n}")
        seen = await ask(shop, dsn, "run", "bulk", "terminate", "--prefix", "t-", "--dry-run")
        assert (seen["matched"], seen["done"], seen["dry_run"]) == (3, 0, True)
        code, _, err = await harvest(shop, dsn, "run", "bulk", "terminate", "--prefix", "t-", "--json")
        assert code == 2 and "--yes" in err
        code, out, _ = await harvest(shop, dsn, "run", "bulk", "terminate", "--prefix", "t-")  # nobody says yes
        assert code == 1 and "3 open runs match" in out
        done = await ask(shop, dsn, "run", "bulk", "signal", '"x"', "--signal", "say", "--prefix", "t-", "--yes")
        assert (done["done"], done["failed"]) == (3, [])
        assert await ask(shop, dsn, "run", "result", "t-2") == ["X"]
        assert (await ask(shop, dsn, "run", "bulk", "cancel", "--type", "Talk", "--yes"))["matched"] == 0
    finally:
        worker.send_signal(signal.SIGTERM)
        assert await worker.wait() == 0


async def test_dead_letters_are_seen_by_cause_and_tried_again(dsn, shop):
    directory = shop("raise SystemExit('no 5')")
    worker = await spawn(shop, dsn, "worker", "flows")
    try:
        started = await ask(shop, dsn, "run", "start", "Talk", "0", "--id", "t")
        found = []
        while not found:
            found = await ask(shop, dsn, "dead-letters", "list")
        assert found[0]["execution_id"] == started["execution_id"]
        cause = (await ask(shop, dsn, "dead-letters", "causes"))[0]
        assert (cause["count"], cause["error"]) == (1, "WorkflowMisuse")
        assert "no #" in cause["message"]
        assert "SystemExit" in (await harvest(shop, dsn, "dead-letters", "show", started["execution_id"]))[1]
        code, out, err = await harvest(directory, dsn, "dead-letters", "replay", "flows")
        assert code == 0 and "1 of 1 histories fit" in out, err
        assert await ask(shop, dsn, "dead-letters", "redrive", "--type", "Talk") == {"redriven": 1, "failed": []}
        found = []
        while not found:
            found = await ask(shop, dsn, "dead-letters", "list")
        assert await ask(shop, dsn, "dead-letters", "discard", found[0]["execution_id"], "--yes") == {
            "discarded": 1,
            "failed": [],
        }
        assert (await ask(shop, dsn, "run", "show", "t"))["state"] == "TERMINATED"
    finally:
        worker.send_signal(signal.SIGTERM)
        assert await worker.wait() == 0


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("run", "bulk", "explode", "--prefix", "t"), 2, "must be one of cancel"),
        (("run", "bulk", "cancel"), 2, "every open run"),
        (("run", "bulk", "cancel", "--attribute", "x"), 2, "'x' is not name=value"),
        (("run", "reset", "nobody"), 1, "'nobody'"),
        (("run", "reset", "nobody", "--signals", "keep"), 2, "reapply, drop"),
        (("run", "hold", "nobody"), 2, "--lift"),
        (("run", "triage", "nobody", "x"), 1, "nobody"),
        (("run", "pause", "nobody"), 1, "nobody"),
        (("run", "chain", "nobody", "--execution-id", "7"), 2, "'7' is not a uuid"),
        (("activity", "fail-now", "nobody", "1"), 1, "nobody"),
        (("dead-letters", "redrive"), 2, "give one, or --type"),
        (("dead-letters", "show", "7"), 2, "'7' is not a uuid"),
        (("dead-letters", "show", "01a22f58-dde3-754c-a49c-efd8d3480381"), 1, "not in the dead letters"),
    ],
)
async def test_what_is_asked_wrongly_is_named(dsn, shop, args, code, said):
    got, _, err = await harvest(shop, dsn, *args)
    assert got == code, err
    assert said in re.sub(r"\s+", " ", err), err
