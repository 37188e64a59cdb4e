"""Spans: one trace per run, whichever worker has it; linked to callers; mute on replay."""

from __future__ import annotations

import asyncio

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from pydantic import BaseModel

from harvest import ApplicationError, RetryPolicy, Worker, activity, entity, errors, workflow
from harvest.telemetry import traces


@pytest.fixture
def exporter(monkeypatch):
    provider = TracerProvider()
    found = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(found))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    return found


def user_span(name: str) -> None:
    """What the user's own code would do."""
    with trace.get_tracer_provider().get_tracer("user").start_as_current_span(name):
        pass


@activity.defn(retry=RetryPolicy(initial=0.001, max_attempts=2))
async def look(secret: str) -> str:
    user_span("in the activity")
    if activity.info().attempt == 1:
        raise ApplicationError("not yet", type="NotYet")
    return "seen"


@workflow.defn
async def child(secret: str) -> str:
    return await look(secret)


class State(BaseModel):
    n: int = 0


@entity.defn
class Tally:
    state: State

    @entity.operation
    def add(self, n: int) -> int:
        self.state.n += n
        return self.state.n


@workflow.defn
async def parent(secret: str) -> str:
    user_span("before the wait")
    await workflow.receive("go", str)
    user_span("after the wait")
    await workflow.entity(Tally, "t").call(Tally.add, 1)
    return await child(secret)


def by_name(exporter: InMemorySpanExporter) -> dict[str, list]:
    found: dict[str, list] = {}
    for span in exporter.get_finished_spans():
        found.setdefault(span.name, []).append(span)
    return found


async def test_one_trace_per_run_over_two_workers_and_mute_on_replay(exporter, client, remote):
    async with Worker(client, definitions=[parent, child, look, Tally]):
        handle = await client.start(parent, "hunter2", id="p")
        async with asyncio.timeout(20):
            while not (await handle.describe()).decisions:
                await asyncio.sleep(0.01)
    async with Worker(remote, definitions=[parent, child, look, Tally]):  # it replays, and goes on
        await handle.signal("go", "now")
        assert await handle.result(timeout=20) == "seen"
    spans = by_name(exporter)
    run = traces.trace_id(handle.execution_id)
    decisions = spans["decide parent"]
    assert {s.context.trace_id for s in decisions} == {run}
    assert [s.attributes["harvest.replay_mode"] for s in decisions][:2] == ["first", "cold"]
    assert [s.attributes["harvest.decision"] for s in decisions] == list(range(1, len(decisions) + 1))
    assert decisions[-1].attributes["harvest.state"] == "COMPLETED"
    # The code before the wait ran twice, and once for the first time.
    for name in ("before the wait", "after the wait"):
        assert len(spans[name]) == 1
        assert spans[name][0].parent.span_id in {s.context.span_id for s in decisions}
    begun = spans["decide child"][0]
    assert run in [link.context.trace_id for link in begun.links]
    attempts = spans["activity look"]
    assert [s.attributes["harvest.activity.attempt"] for s in attempts] == [1, 2]
    assert {s.context.trace_id for s in attempts} == {begun.context.trace_id}
    assert attempts[0].attributes["error.type"] == "NotYet"
    assert {s.parent.span_id for s in spans["in the activity"]} == {s.context.span_id for s in attempts}
    operation = spans["operation of Tally"][0]
    assert [link.context.trace_id for link in operation.links] == [run]
    started, signalled = spans["start parent"][0], spans["signal go"][0]
    for call in (started, signalled):
        assert call.context.trace_id != run
        assert [link.context.trace_id for link in call.links] == [run]
    assert "hunter2" not in str([s.to_json() for s in exporter.get_finished_spans()])


async def test_calls_of_entities_and_failures_are_spans(exporter, client):
    async with Worker(client, definitions=[Tally]):
        with trace.get_tracer_provider().get_tracer("user").start_as_current_span("request") as request:
            assert await client.entity(Tally, "t").call(Tally.add, 3) == 3
            with pytest.raises(errors.OperationRejected):
                await client.entity("Tally", "t").call("nope")
    spans = by_name(exporter)
    call = spans["call Tally.add"][0]
    assert call.context.trace_id == request.get_span_context().trace_id
    assert [link.context.trace_id for link in call.links] == [spans["operation of Tally"][0].context.trace_id]
    assert spans["call Tally.nope"][0].attributes["error.type"] == "UnknownHandlerError"


def test_a_sampler_decides_by_the_run(monkeypatch):
    """Every worker comes to the same answer, and about the asked-for part of the runs is sampled."""
    from harvest.ids import new_id

    provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(0.25)))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    ids = [new_id() for _ in range(400)]
    sampled = [traces.of_run(i).trace_flags.sampled for i in ids]
    assert sampled == [traces.of_run(i).trace_flags.sampled for i in ids]
    assert 40 < sum(sampled) < 170


def test_nothing_is_made_without_a_provider():
    assert not traces.on()
    with traces.calling("start", "x"), traces.attempting("a", None, "", 1, 1):
        assert not trace.get_current_span().is_recording()


class Sour(SpanProcessor):
    """One that breaks the rule that a processor never raises."""

    def on_start(self, span, parent_context=None) -> None:
        if span.name.startswith("decide"):
            raise RuntimeError("sour start")

    def on_end(self, span) -> None:
        raise RuntimeError("sour end")


charged: list[int] = []


@activity.defn
async def charge(n: int) -> int:
    charged.append(n)
    return n + 1


@workflow.defn
class quiet:
    def __init__(self) -> None:
        self.seen = 0

    @workflow.run
    async def run(self, n: int) -> int:
        self.seen = n
        return await charge(n)

    @workflow.query
    def n(self) -> int:
        return self.seen


class Open(SpanProcessor):
    """Counts what was begun and not ended."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def on_start(self, span, parent_context=None) -> None:
        self.names.append(span.name)

    def on_end(self, span) -> None:
        self.names.remove(span.name)


async def test_questions_begin_no_span_of_a_decision(exporter, client, remote):
    begun = Open()
    trace.get_tracer_provider().add_span_processor(begun)
    async with Worker(remote, definitions=[parent, child, look, Tally]):
        handle = await client.start(parent, "hunter2", id="p")
        for _ in range(5):
            with pytest.raises(errors.QueryFailed, match="nothing"):
                await remote.handle("p").query("nothing")
        assert begun.names == []
        decisions = [span for span in exporter.get_finished_spans() if span.name == "decide parent"]
        assert len(decisions) == 1
        assert (await handle.describe()).decisions == 1
        await handle.terminate()
    assert begun.names == []


async def test_a_processor_that_raises_harms_nothing_but_its_spans(exporter, client, remote, caplog):
    trace.get_tracer_provider().add_span_processor(Sour())
    async with Worker(remote, definitions=[quiet, charge]):
        handle = await client.start(quiet, 1, id="q")
        assert await handle.query("n") == 1
        assert await handle.result(timeout=20) == 2
    assert charged == [1]
    assert "could not be traced" in caplog.text and "sour end" in caplog.text
