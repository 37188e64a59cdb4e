"""The cart service over HTTP: what a caller of the shop sees."""

from __future__ import annotations

import asyncio
from decimal import Decimal

import httpx
import pytest

from examples.cart_service.app import create_app


@pytest.fixture
async def http(dsn):
    app = create_app(dsn)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as opened:
            yield opened


def line(sku: str = "apple", quantity: int = 2, price: str = "1.50") -> dict[str, object]:
    return {"sku": sku, "quantity": quantity, "price": price}


async def test_a_cart_from_the_first_line_to_the_receipt(http):
    assert (await http.get("/carts/c1")).status_code == 404
    assert (await http.post("/carts/c1/lines", json=line())).status_code == 201
    assert (await http.post("/carts/c1/lines", json=line("pear", 1, "2.00"))).json() == 2
    assert (await http.post("/carts/c1/lines", json=line(quantity=3))).json() == 2
    assert Decimal((await http.get("/carts/c1/total")).json()) == Decimal("9.50")
    assert (await http.delete("/carts/c1/lines/pear")).json() == 1
    receipt = (await http.post("/carts/c1/check-out")).json()
    assert receipt.startswith("c1-7.50-")
    state = (await http.get("/carts/c1")).json()
    assert (state["status"], state["receipt"]) == ("paid", receipt)
    late = await http.post("/carts/c1/lines", json=line())
    assert (late.status_code, late.json()["error"]) == (409, "Closed")
    assert (await http.delete("/carts/c1")).status_code == 204
    assert (await http.get("/carts/c1")).status_code == 404


async def test_retries_with_a_key_act_once(http):
    headers = {"Idempotency-Key": "k1"}
    answers = await asyncio.gather(*(http.post("/carts/c1/lines", json=line(), headers=headers) for _ in range(5)))
    assert {a.json() for a in answers} == {1}
    assert (await http.get("/carts/c1")).json()["lines"][0]["quantity"] == 2
    empty = await http.post("/carts/c2/check-out")
    assert (empty.status_code, empty.json()["error"]) == (409, "Empty")


@pytest.mark.parametrize("bad", [line(quantity=0), line(sku=""), line(price="-1"), line(price="1.555"), {}, []])
async def test_bad_lines_are_refused(http, bad):
    assert (await http.post("/carts/c1/lines", json=bad)).status_code == 422
    assert (await http.get("/carts/c1")).status_code == 404


async def test_questions(http):
    for n in range(6):
        await http.post(f"/carts/c{n}/lines", json=line())
    await http.post("/carts/c0/check-out")
    rows = await http.get(
        "/carts/c1/sql", params={"q": "SELECT value ->> 'sku' AS sku FROM entity, json_each(state, '$.lines')"}
    )
    assert rows.json() == {"columns": ["sku"], "rows": [["apple"]]}
    for bad in ("DELETE FROM entity", "SELECT nope FROM entity", "PRAGMA hard_heap_limit = 0"):
        assert (await http.get("/carts/c1/sql", params={"q": bad})).status_code == 400
    assert (await http.get("/statistics")).json() == [
        {"status": "open", "carts": 5, "lines": 1.0},
        {"status": "paid", "carts": 1, "lines": 1.0},
    ]


async def test_many_shoppers_at_one_cart(http):
    added = await asyncio.gather(*(http.post("/carts/shared/lines", json=line(f"sku-{n}", 1)) for n in range(40)))
    assert sorted(a.json() for a in added) == list(range(1, 41))
    assert len((await http.get("/carts/shared")).json()["lines"]) == 40


async def test_the_staff_has_harvests_pages_behind_the_shops_own_sign_in(http, monkeypatch):
    monkeypatch.setenv("STAFF_PASSWORD", "open sesame")
    await http.post("/carts/c1/lines", json=line())
    refused = await http.get("/ops/api/entities")
    assert (refused.status_code, refused.json()["error"]) == (401, "Unauthenticated")
    assert refused.headers["www-authenticate"].startswith("Basic")
    assert (await http.get("/ops/")).status_code == 401
    staff = ("ann", "open sesame")
    assert (await http.get("/ops/api/entities", auth=staff)).json() == {"Cart": 1}
    shown = await http.get("/ops/entity", params={"type": "Cart", "key": "c1"}, auth=staff)
    assert shown.status_code == 200
    assert 'href="/ops/static/app.css"' in shown.text
    assert (await http.get("/ops/static/app.css")).status_code == 200
    rows = await http.post("/ops/api/entities/Cart/sql", json={"sql": "SELECT count(*) AS n FROM entity"}, auth=staff)
    assert rows.json()["rows"] == [[1]]
    missing = await http.get("/ops/api/workflows/by-id/nobody", auth=staff)
    assert missing.json()["error"] == "WorkflowNotFound"
    assert (await http.post("/ops/api/owner-mode/disable", auth=staff)).status_code == 403
    foreign = await http.delete("/ops/api/entities/Cart/c1", auth=staff, headers={"Origin": "https://evil.example"})
    assert foreign.status_code == 403
    audited = await http.get("/openapi.json")
    assert "/ops/api/workflows" in audited.json()["paths"]
