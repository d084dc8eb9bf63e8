"""Tasks, greenlets and generators in a block: whose a span is, and when it only waited."""

from __future__ import annotations

import asyncio
import contextvars
import random
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from toy import Toy, ToyModel

import xsp
from xsp.provider import END, PAUSE
from xsp.testing import FakeClock, only_providers

SECOND = 1_000_000_000


@pytest.fixture
def model() -> Iterator[ToyModel]:
    """A toy model whose framework is the only provider."""
    toy = Toy(FakeClock())
    with only_providers(toy):
        yield ToyModel(toy)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """A clock that a program advances, in place of the system's."""
    clock = FakeClock()
    monkeypatch.setattr("xsp.record.program.log.monotonic_ns", clock.now)
    return clock


def profiled(**options: Any) -> xsp.profile:
    return xsp.profile(levels=1, repeat=False, progress=False, **options)


def parents(trace: xsp.Trace) -> dict[str, str]:
    """Return the span around each span by their names, which are unlike."""
    trace.check()
    spans = {row["span_id"]: row for row in trace.spans.iter_rows(named=True)}
    found = {}
    for row in spans.values():
        around = spans.get(row["parent_id"])
        if around is None:
            continue
        assert around["start_ns"] <= row["start_ns"] <= row["end_ns"] <= around["end_ns"]
        assert row["self_ns"] >= 0
        assert row["name"] not in found
        found[row["name"]] = around["name"]
    return found


def calls_in(trace: xsp.Trace) -> dict[str, int]:
    """Return how many calls of a model lie right in each span."""
    spans = {row["span_id"]: row for row in trace.spans.iter_rows(named=True)}
    result: Counter[str] = Counter()
    for row in spans.values():
        if row["name"].removeprefix("first call of ").startswith("ToyModel"):
            result[spans[row["parent_id"]]["name"]] += row["attributes"]["calls"] or 1
    return dict(result)


def waited(trace: xsp.Trace, name: str) -> float | None:
    """Return the part of a span's latency in which it awaited something."""
    [row] = trace.spans.filter(name=name).iter_rows(named=True)
    found = row["attributes"].get("awaiting_ns")
    return None if found is None else found / row["latency_ns"]


@dataclass
class Request:
    """A span, with what happens in it in turn: yields, calls, spans, and tasks that it awaits."""

    name: str
    parts: list[Any] = field(default_factory=list)

    async def run(self, model: ToyModel) -> None:
        with xsp.span(self.name):
            for part in self.parts:
                if part == "yield":
                    await asyncio.sleep(0)
                elif part == "call":
                    model()
                elif part == "thread":
                    await asyncio.to_thread(model)
                elif isinstance(part, Request):
                    await part.run(model)
                else:
                    async with asyncio.TaskGroup() as group:
                        for each in part:
                            group.create_task(each.run(model))

    def told(self, around: str) -> dict[str, str]:
        """Return the parent of this span and of those in it."""
        found = {self.name: around}
        for part in self.parts:
            for each in part if isinstance(part, list) else [part]:
                found |= each.told(self.name) if isinstance(each, Request) else {}
        return found

    def called(self) -> dict[str, int]:
        """Return how many calls lie in this span and in those in it."""
        own = sum(part in ("call", "thread") for part in self.parts)
        found = {self.name: own} if own else {}
        for part in self.parts:
            for each in part if isinstance(part, list) else [part]:
                found |= each.called() if isinstance(each, Request) else {}
        return found


def drawn(source: random.Random, name: str, depth: int = 0) -> Request:
    request = Request(name)
    for number in range(source.randrange(1, 5)):
        kinds = ["yield", "yield", "call", "thread"] + ["span", "tasks"] * (depth < 3)
        kind = source.choice(kinds)
        inside = f"{name}.{number}"
        if kind == "span":
            request.parts.append(drawn(source, inside, depth + 1))
        elif kind == "tasks":
            several = range(source.randrange(1, 4))
            request.parts.append([drawn(source, f"{inside}{n}", depth + 1) for n in several])
        else:
            request.parts.append(kind)
    return request


@pytest.mark.parametrize("seed", range(8))
def test_spans_of_tasks_lie_in_their_own_request(model: ToyModel, seed: int) -> None:
    source = random.Random(seed)
    requests = [drawn(source, f"request {number}") for number in range(4)]

    async def serve() -> None:
        await asyncio.gather(*(each.run(model) for each in requests))

    with profiled() as prof:
        asyncio.run(serve())
    trace = prof.trace
    told: dict[str, str] = {}
    called: dict[str, int] = {}
    for each in requests:
        told |= each.told("block")
        called |= each.called()
    names = set(told)
    assert {name: around for name, around in parents(trace).items() if name in names} == told
    assert calls_in(trace) == called


def run(program: Callable[[], Coroutine[Any, Any, None]]) -> xsp.Trace:
    with profiled() as prof:
        asyncio.run(program())
    parents(prof.trace)
    return prof.trace


def test_an_await_is_a_wait_and_no_work_of_its_request(model: ToyModel, clock: FakeClock) -> None:
    async def waiting(done: asyncio.Event) -> None:
        with xsp.span("waits"):
            clock.advance(SECOND)
            await done.wait()

    async def working(done: asyncio.Event) -> None:
        with xsp.span("works"):
            await asyncio.sleep(0)
            clock.advance(3 * SECOND)
            done.set()

    async def serve() -> None:
        done = asyncio.Event()
        await asyncio.gather(waiting(done), working(done))

    trace = run(serve)
    assert waited(trace, "waits") == pytest.approx(0.75, abs=0.01)
    assert waited(trace, "works") == pytest.approx(0.0, abs=0.01)
    assert "75 % awaiting" in trace.tree()


def test_a_task_in_a_request_works_for_it(model: ToyModel, clock: FakeClock) -> None:
    async def part(number: int) -> None:
        with xsp.span(f"part {number}"):
            clock.advance(SECOND)
            await asyncio.sleep(0)
            clock.advance(SECOND)

    async def serve() -> None:
        with xsp.span("request"):
            await asyncio.gather(part(0), part(1))

    trace = run(serve)
    assert waited(trace, "request") == pytest.approx(0.0, abs=0.01)
    assert waited(trace, "part 0") == pytest.approx(1 / 3, abs=0.01)


def test_waits_are_known_of_a_block_inside_a_task_from_its_first_turn_on(
    model: ToyModel, clock: FakeClock
) -> None:
    found = []

    async def other() -> None:
        clock.advance(3 * SECOND)

    async def serve() -> None:
        with profiled() as prof, xsp.span("request"):
            task = asyncio.create_task(other(), context=contextvars.Context())
            clock.advance(SECOND)
            await task
        found.append(prof.trace)

    asyncio.run(serve())
    assert waited(found[0], "request") == pytest.approx(0.75, abs=0.01)


def test_without_an_event_loop_nothing_is_said_of_waits(model: ToyModel) -> None:
    with profiled() as prof, xsp.span("region"):
        time.sleep(0.001)
    assert waited(prof.trace, "region") is None


def test_a_canceled_request_ends_where_it_was_canceled(model: ToyModel) -> None:
    async def handle(name: str, seconds: float) -> None:
        with xsp.span(name):
            model()
            await asyncio.sleep(seconds)
            model()

    async def serve() -> None:
        tasks = [asyncio.create_task(handle("long", 60)), asyncio.create_task(handle("short", 0))]
        await tasks[1]
        tasks[0].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    trace = run(serve)
    assert calls_in(trace) == {"long": 1, "short": 2}
    [long] = trace.spans.filter(name="long").iter_rows(named=True)
    assert long["attributes"]["error"] == "CancelledError"


def test_a_generator_that_nobody_ends_is_longer_than_no_request(model: ToyModel) -> None:
    async def stream() -> AsyncIterator[int]:
        with xsp.span("stream"):
            while True:
                model()
                yield 1

    async def serve() -> None:
        generator = stream()
        with xsp.span("request"):
            async for _ in generator:
                break
        with xsp.span("next request"):
            model()
        await asyncio.sleep(0)

    trace = run(serve)
    assert parents(trace)["stream"] == "block"
    assert calls_in(trace) == {"stream": 1, "next request": 1}


def test_work_of_a_thread_for_a_canceled_task_is_longer_than_no_request(model: ToyModel) -> None:
    begun, over = threading.Event(), threading.Event()

    def work() -> None:
        with xsp.span("work"):
            begun.set()
            over.wait(10)
            model()

    async def handle() -> None:
        with xsp.span("request"):
            await asyncio.to_thread(work)

    async def serve() -> None:
        task = asyncio.create_task(handle())
        while not begun.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        over.set()

    trace = run(serve)
    assert parents(trace)["work"] == "block"
    assert calls_in(trace) == {"work": 1}


def test_a_callback_in_another_context_is_not_the_requests(model: ToyModel) -> None:
    async def serve() -> None:
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        with xsp.span("request"):
            loop.call_soon(model, context=contextvars.Context())
            loop.call_soon(model)
            loop.call_soon(done.set)
            await done.wait()

    assert calls_in(run(serve)) == {"block": 1, "request": 1}


def test_a_generator_that_another_thread_resumes_is_nobodys_but_its_own(model: ToyModel) -> None:
    def items() -> Generator[int, None, None]:
        with xsp.span("generator"):
            for number in range(3):
                model()
                yield number

    def consume(name: str) -> None:
        with xsp.span(name):
            next(generator)
            model()

    with profiled() as prof:
        generator = items()
        consume("main")
        thread = threading.Thread(target=consume, args=("other",))
        thread.start()
        thread.join()
        generator.close()
    assert calls_in(prof.trace) == {"generator": 2, "main": 1, "other": 1}
    assert {"main": "block", "other": "block"}.items() <= parents(prof.trace).items()


def test_self_times_of_tasks_within_tasks_are_those_of_the_clock(
    model: ToyModel, clock: FakeClock
) -> None:
    async def leaf(number: int) -> None:
        with xsp.span(f"leaf {number}"):
            clock.advance(SECOND)
            await asyncio.sleep(0)

    async def request(number: int) -> None:
        with xsp.span(f"request {number}"):
            await asyncio.gather(leaf(2 * number), leaf(2 * number + 1))
            clock.advance(2 * SECOND)

    async def serve() -> None:
        await asyncio.gather(request(0), request(1))

    trace = run(serve)
    own = dict(trace.spans.select("name", "self_ns").iter_rows())
    assert own["request 0"] > 0.5 * SECOND
    assert sum(own.values()) == pytest.approx(trace.root.latency_ns, rel=0.01)


def test_tasks_have_no_more_of_the_clock_than_the_region_around_them(
    model: ToyModel, clock: FakeClock
) -> None:
    def pause(ns: int) -> None:
        log = model.toy.log
        assert log is not None
        events = log.local.log.append
        for code in (PAUSE, END):
            events(code)
            events(clock.now())
            clock.advance(ns if code == PAUSE else 0)

    async def short(done: asyncio.Event) -> None:
        with xsp.span("task"):
            await done.wait()

    async def long(done: asyncio.Event) -> None:
        with xsp.span("task"):
            clock.advance(3 * SECOND)
            done.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            pause(5 * SECOND)  # when the others have ended
            clock.advance(SECOND)

    async def serve() -> None:
        done = asyncio.Event()
        with xsp.span("around"):
            await asyncio.gather(short(done), short(done), long(done))

    with profiled() as prof:
        asyncio.run(serve())
    prof.trace.check()
    latency = dict(prof.trace.spans.select("name", "latency_ns").iter_rows())
    assert latency["around"] == pytest.approx(4 * SECOND, rel=0.01)
    assert latency["task"] == pytest.approx(10 * SECOND, rel=0.01)


@pytest.mark.parametrize("shared", [True, False])
def test_blocks_of_tasks_that_are_left_out_take_nothing_from_the_one_that_is_profiled(
    model: ToyModel, shared: bool
) -> None:
    one = profiled(on_busy="skip")
    profiles: list[xsp.profile] = []

    async def handle(number: int) -> None:
        prof = one if shared else profiled(on_busy="skip")
        profiles.append(prof)
        with prof:
            for _ in range(3):
                with xsp.span(f"request {number}"):
                    model()
                    await asyncio.sleep(0.001 * (number + 1))
        model()

    async def serve() -> None:
        await asyncio.gather(*(handle(number) for number in range(3)))

    asyncio.run(serve())
    assert calls_in(profiles[0].trace) == {"request 0": 3}
    for other in profiles[1:] if not shared else ():
        with pytest.raises(xsp.MeasurementError, match="skipped"):
            _ = other.trace


def test_asyncio_is_as_before_after_a_block_and_another_tools_hook_stays(
    model: ToyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = asyncio.Handle._run
    with profiled():
        assert asyncio.Handle._run is not original
    assert asyncio.Handle._run is original
    with profiled():
        monkeypatch.setattr(asyncio.Handle, "_run", other := staticmethod(original))
    assert vars(asyncio.Handle)["_run"] is other
