"""The dashboard in a real browser: what a person on call does, without reloading a page."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.server import flows
from tests.server.conftest import listening

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)
PATIENCE = 20_000
"""Milliseconds that a page gets to show something."""

if CHROMIUM is None and not os.environ.get("HARVEST_NEEDS_BROWSER"):
    pytest.skip("no Chromium is installed (apt-get install chromium)", allow_module_level=True)


class Watched:
    """A page that must not complain, and must not be loaded again."""

    def __init__(self, page: Any) -> None:
        self.page, self.complaints, self.loads = page, list[str](), 0
        page.set_default_timeout(PATIENCE)
        page.on("pageerror", lambda exc: self.complaints.append(str(exc)))
        page.on("console", self._said)
        page.on("load", lambda _: setattr(self, "loads", self.loads + 1))

    def _said(self, message: Any) -> None:
        if message.type == "error" and "net::ERR_" not in message.text:  # the server stops before its last page closes
            self.complaints.append(message.text)


@pytest.fixture
async def browser() -> AsyncIterator[Any]:
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        opened = await playwright.chromium.launch(executable_path=CHROMIUM, args=[*QUIET])
        yield opened
        await opened.close()


@pytest.fixture
async def watched(browser: Any) -> AsyncIterator[Watched]:
    context = await browser.new_context(viewport={"width": 1200, "height": 900})
    found = Watched(await context.new_page())
    yield found
    assert found.complaints == []
    await context.close()


async def test_a_run_is_started_signalled_and_watched_to_its_end(door, fleet, watched):
    page = watched.page
    async with listening(door) as address:
        await page.goto(address)
        await page.get_by_text("No run was started yet").wait_for()
        await page.get_by_text("live", exact=True).wait_for()
        await page.get_by_text("Start a run").click()
        form = page.locator("#start form")
        await form.get_by_label("Type").fill("Order")
        await form.get_by_label("Workflow id").fill("order/1 of März")
        await form.get_by_label("Arguments").fill("[12]")
        await form.get_by_role("button", name="Start").click()
        await page.get_by_role("heading", name="order/1 of März").wait_for()
        await page.locator("#standing").get_by_text("wait_until").first.wait_for()
        await page.get_by_text("live", exact=True).wait_for()
        loads = watched.loads
        await page.locator("#a-update summary").click()
        update = page.locator("#a-update form")
        await update.get_by_label("Name").fill("add")
        await update.get_by_label("Arguments").fill('["pear"]')
        await update.get_by_role("button", name="Update").click()
        await update.locator("output.good").get_by_text("1").wait_for()
        await page.locator("#timeline .label", has_text="update add").wait_for()
        assert await update.get_by_label("Name").input_value() == "add"  # what was typed survives the refresh
        await page.locator("#a-signal summary").click()
        signal_form = page.locator("#a-signal form")
        await signal_form.get_by_label("Name").fill("approve")
        await signal_form.get_by_role("button", name="Send").click()
        await page.locator("#head .state-completed").wait_for()
        await page.locator("#result").get_by_text('"paid 12"').wait_for()
        await page.locator("#timeline rect.kind-activity").first.wait_for(state="attached")
        assert await page.locator("#standing").count() == 0
        assert watched.loads == loads
        await page.locator("#e1 summary").click()
        await page.locator("#e1 pre").wait_for()


async def test_runs_are_filtered_as_one_types_and_ended_in_bulk_after_a_dry_run(door, fleet, watched):
    page = watched.page
    for n in range(3):
        await door.start(flows.Order, n, id=f"order-{n}")
    for n in range(4):
        await (await door.start(flows.greet, "x", id=f"greet-{n}")).result()
    async with listening(door) as address:
        await page.goto(address)
        await page.get_by_role("link", name="completed 4").wait_for()
        loads = watched.loads
        await page.keyboard.press("/")
        await page.keyboard.type("order-")
        await page.locator("tr", has_text="greet-0").wait_for(state="detached")
        assert await page.locator("#list tbody tr").count() == 3
        assert "q=order-" in page.url
        await page.keyboard.press("Escape")
        await page.keyboard.press("j")
        await page.keyboard.press("j")
        assert await page.evaluate("document.activeElement.textContent") == "order-1"
        await page.get_by_text("Act on all that match").click()
        bulk = page.locator("#bulk form")
        await bulk.get_by_label("Act").select_option("terminate")
        await bulk.get_by_role("button", name="Dry run").click()
        await bulk.get_by_text("3 open runs would get terminate").wait_for()
        await page.locator("#q").fill("")  # whatever is typed after the dry run, the act is about what it showed
        await page.locator("tr", has_text="greet-0").wait_for()
        await (await door.start(flows.Order, 9, id="other")).update("add", "pear")
        await bulk.get_by_role("button", name="terminate 3 runs").click()
        await bulk.get_by_text("3 of 3 done").wait_for()
        await page.get_by_role("link", name="terminated 3").wait_for()
        assert (await door.handle("other").describe()).state == "RUNNING"
        await page.get_by_role("link", name="terminated 3").click()
        await page.locator("#list .state-terminated").first.wait_for()
        await bulk.get_by_role("button", name="Dry run").click()
        await bulk.get_by_text("only open ones can be acted on").wait_for()
        assert watched.loads == loads
        await page.keyboard.press("g")
        await page.keyboard.press("f")
        await page.get_by_role("heading", name="1 worker").wait_for()


async def test_entities_are_asked_in_sql(door, fleet, watched):
    page = watched.page
    for n in range(6):
        await door.entity(flows.Counter, f"c/{n}").call("add", n % 2 + 1)
    async with listening(door) as address:
        await page.goto(f"{address}/entities")
        await page.get_by_role("link", name="Counter 6").click()
        await page.get_by_role("button", name="by a field").click()
        await page.locator(".bars rect").nth(1).wait_for(state="attached")
        await page.get_by_text("complete:").wait_for()
        await page.locator("#sql").fill("SELECT nope FROM entity")
        await page.locator("#sql").press("Control+Enter")
        await page.locator("output.bad", has_text="nope").wait_for()
        watched.complaints.clear()  # the browser notes the 400
        await page.get_by_role("link", name="c/1").click()
        await page.locator("#state").get_by_text("2", exact=True).wait_for()
        call = page.locator("#call form").first
        await call.get_by_label("Operation").fill("add")
        await call.get_by_label("Arguments").fill("[40]")
        await call.get_by_role("button", name="Call").click()
        await page.locator("#state").get_by_text("42", exact=True).wait_for()
        await page.get_by_role("button", name="its fields").click()
        await page.locator(".answer").get_by_text("42", exact=True).wait_for()
        await page.get_by_text("read from").wait_for()


async def spawn(dsn: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "harvest.cli.main", "worker", "tests.server.flows", "--log-level", "error"),
        cwd=Path(__file__).parents[2],
        env={**os.environ, "HARVEST_DATABASE_URL": dsn},
    )


async def test_a_worker_dies_and_its_partitions_are_seen_to_move(door, dsn, watched):
    page = watched.page
    workers = [await spawn(dsn) for _ in range(2)]
    try:
        async with listening(door) as address:
            await page.goto(f"{address}/fleet")
            await page.get_by_role("heading", name="2 workers").wait_for()
            loads = watched.loads
            await page.wait_for_function(
                """() => { const owners = [...document.querySelectorAll('rect[data-owner]')].map((r) => r.dataset.owner);
                  return owners.length === 512 && !owners.includes('') && new Set(owners).size === 2; }"""
            )
            victim = next(w for w in await door.workers() if w["pid"] == workers[0].pid)["worker_id"]
            workers[0].send_signal(signal.SIGKILL)
            await page.wait_for_function(
                """(dead) => { const owners = [...document.querySelectorAll('rect[data-owner]')].map((r) => r.dataset.owner);
                  return owners.length === 512 && !owners.includes('') && !owners.includes(dead); }""",
                arg=str(victim),
            )
            await page.locator("#failovers", has_text=f"pid {workers[0].pid}").wait_for()
            await page.wait_for_function("() => document.querySelector('#failovers tbody td:last-child').textContent !== '–'")
            assert watched.loads == loads
    finally:
        for worker in workers:
            if worker.returncode is None:
                worker.kill()
            await worker.wait()


async def test_signing_in_with_a_token(door, fleet, watched):
    page = watched.page
    made = await door.tokens.create("ann", scopes=["operate"])
    await door.start(flows.Order, 1, id="o")
    async with listening(door) as address:
        await page.goto(f"{address}/run?id=o")
        assert "/login" in page.url
        await page.get_by_label("Token").fill("hv_wrong")
        await page.get_by_role("button", name="Sign in").click()
        await page.get_by_text("this token is not valid").wait_for()
        watched.complaints.clear()  # the browser notes the 401
        await page.get_by_label("Token").fill(made.secret)
        await page.get_by_role("button", name="Sign in").click()
        await page.locator("#head h1", has_text="running").wait_for()
        assert page.url == f"{address}/run?id=o"
        cookie = (await page.context.cookies())[0]
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        assert await page.evaluate("document.cookie") == ""
        await page.locator("#a-signal summary").click()
        await page.locator("#a-signal form").get_by_label("Name").fill("approve")
        await page.locator("#a-signal form").get_by_role("button", name="Send").click()
        await page.locator("#head .state-completed").wait_for()
        assert [e.actor for e in await door.audit()] == ["ann"]
        await page.get_by_role("button", name="sign out").click()
        await page.goto(f"{address}/health")
        assert "/login" in page.url


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_every_page_fits_a_phone(door, fleet, browser, scheme):
    await (await door.start(flows.greet, "x", id="a-rather-long-workflow-id/with-a-child/" + "x" * 60)).result()
    await door.start(flows.bank, 1, id="bank")
    await door.entity(flows.Counter, "c" * 80).call("add", 1)
    context = await browser.new_context(viewport={"width": 360, "height": 740}, color_scheme=scheme)
    page = await context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda exc: complaints.append(str(exc)))
    async with listening(door) as address:
        long = "a-rather-long-workflow-id/with-a-child/" + "x" * 60
        for path in (
            "/",
            f"/run?id={long}",
            "/run?id=bank",
            "/entities?type=Counter",
            f"/entity?type=Counter&key={'c' * 80}",
            "/fleet",
            "/health",
        ):
            answer = await page.goto(address + path)
            assert answer.status == 200, path
            assert await page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), path
            unnamed = await page.evaluate(
                """[...document.querySelectorAll('input:not([type=hidden]), select, textarea')]
                  .filter((e) => !e.labels.length).map((e) => e.outerHTML)"""
            )
            assert unnamed == [], path
    assert complaints == []
    await context.close()


async def test_a_page_comes_back_after_its_stream_was_refused(door, fleet, watched):
    page, refused = watched.page, []

    async def refuse(route: Any) -> None:
        """A hub that is away, a proxy in a deploy: after such an answer a browser does not ask again by itself."""
        if len(refused) < 2:
            refused.append(route.request.url)
            await route.fulfill(status=503, content_type="application/problem+json", body="{}")
        else:
            await route.continue_()

    await page.route("**/api/changes", refuse)
    async with listening(door) as address:
        await page.goto(address)
        await page.get_by_text("away", exact=True).wait_for()
        await page.get_by_text("live", exact=True).wait_for()
        assert len(refused) == 2
        await door.start(flows.greet, "x", id="after")
        await page.locator("#list").get_by_text("after").wait_for()
    watched.complaints.clear()  # the browser notes the 503s
