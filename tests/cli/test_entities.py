"""`harvest entity …` as people and scripts meet it."""

from __future__ import annotations

import csv
import io
import json

import pytest
from pydantic import BaseModel

from harvest import Worker, WorkerConfig, entity
from tests.cli.test_commands import spawn


class Kept(BaseModel):
    n: int = 0
    names: list[str] = []


@entity.defn
class Counter:
    state: Kept

    @entity.operation
    def add(self, n: int, name: str = "") -> int:
        self.state.n += n
        self.state.names.append(name)
        return self.state.n

    @entity.operation
    def fail(self) -> None:
        raise ValueError("not today")


@pytest.fixture
async def harvest_cli(client, dsn, tmp_path):
    config = WorkerConfig(owner_disk_cache=tmp_path / "cache", owner_entity_sql=True)

    async def run(*args: str) -> tuple[int, str, str]:
        process = await spawn(tmp_path, dsn, "entity", *args)
        out, err = await process.communicate()
        return process.returncode, out.decode(), err.decode()

    async with Worker(client, definitions=[Counter], config=config):
        yield run


async def test_call_show_list_and_delete(harvest_cli):
    assert await harvest_cli("call", "Counter", "a", "add", "5", "ü") == (0, "5\n", "")
    assert (await harvest_cli("call", "counter", "a", "add", "2", "--idempotency-key", "k"))[1] == "7\n"
    assert (await harvest_cli("call", "counter", "a", "add", "2", "--idempotency-key", "k"))[1] == "7\n"
    await harvest_cli("call", "Counter", "b", "add", "1")
    code, out, _ = await harvest_cli("show", "counter", "a")
    assert code == 0 and "Counter a" in out and '"n": 7' in out
    shown = json.loads((await harvest_cli("show", "counter", "a", "--json"))[1])
    assert shown["state"] == {"n": 7, "names": ["ü", ""]} and shown["key"] == "a"
    listed = json.loads((await harvest_cli("list", "counter", "--json"))[1])
    assert [row["key"] for row in listed] == ["a", "b"]
    assert json.loads((await harvest_cli("list", "--json"))[1]) == [{"type": "Counter", "entities": 2}]
    rows = list(csv.reader(io.StringIO((await harvest_cli("list", "counter", "--format", "csv", "--prefix", "b"))[1])))
    assert rows[0][0] == "key" and rows[1][0] == "b"
    assert (await harvest_cli("delete", "counter", "a", "--yes"))[1] == "deleted counter a\n"
    code, _, err = await harvest_cli("show", "counter", "a", "--json")
    assert code == 1 and json.loads(err)["error"] == "EntityNotFound"


async def test_sql_of_one_and_of_all(harvest_cli):
    for key, n in (("a", 5), ("b", 2), ("c", 2)):
        await harvest_cli("call", "Counter", key, "add", str(n), key.upper())
    one = await harvest_cli(
        "sql", "counter", "a", "SELECT state ->> '$.n' AS n, ? AS p FROM entity", "-p", "x", "--format", "csv"
    )
    assert one[:2] == (0, "n,p\n5,x\n") and "from resident" in one[2]
    question = "SELECT state ->> '$.n' AS n, count(*) AS many FROM entity GROUP BY n ORDER BY n"
    code, out, err = await harvest_cli("sql", "counter", question, "--json")
    assert (code, json.loads(out), err) == (0, [{"n": 2, "many": 2}, {"n": 5, "many": 1}], "")
    table = await harvest_cli("sql", "counter", question)
    assert "many" in table[1] and "3 entities of 1 worker" in table[2]


async def test_mistakes_have_a_place_and_an_exit_code(harvest_cli):
    await harvest_cli("call", "Counter", "a", "add", "1")
    code, _, err = await harvest_cli("sql", "counter", "a", "SELECT nn FROM entity")
    assert code == 2 and "line 1, column 8" in err and "       ^" in err and "state ->> '$.nn'" in err
    assert "only reads" in (await harvest_cli("sql", "counter", "a", "DROP TABLE entity"))[2]
    assert "window function" in (await harvest_cli("sql", "counter", "SELECT rank() OVER () FROM entity"))[2]
    code, _, err = await harvest_cli("sql", "nothing", "SELECT 1 FROM entity")
    assert code == 1 and "no entities of type" in err
    code, _, err = await harvest_cli("call", "Counter", "a", "fail")
    assert code == 1 and "not today" in err
    code, _, err = await harvest_cli("call", "Counter", "a", "ad", "1")
    assert code == 1 and "no operation named 'ad'" in err
    assert "in quotes" in (await harvest_cli("sql", "counter", "a", "SELECT", "1"))[2]
