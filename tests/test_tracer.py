from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import polars as pl
import pytest

import xsp
from xsp import tracer
from xsp.clock import SystemClock
from xsp.level import Kind
from xsp.provider.contract import Request
from xsp_levels.model import Model

ALL = frozenset(Kind)


@contextmanager
def recording(kinds: frozenset[Kind] = ALL) -> Iterator[list[pl.DataFrame]]:
    model, out = Model(), list[pl.DataFrame]()
    model.start(SystemClock(), Request(kinds))
    try:
        yield out
    finally:
        out.append(model.spans(model.stop()))


def test_nothing_is_recorded_while_nothing_profiles() -> None:
    with xsp.span("a"):
        pass
    assert tracer.disarm() == tracer.UserSpans()


def test_spans_carry_name_kind_times_thread_and_attributes() -> None:
    with recording() as out, xsp.span("tokenize", batch=8):
        pass
    [row] = out[0].to_dicts()
    assert (row["name"], row["kind"], row["attr.user.batch"]) == ("tokenize", "region", 8)
    assert row["end_ns"] >= row["start_ns"] > 0
    assert row["thread"] == threading.get_ident()


def test_only_spans_of_the_kinds_asked_for_are_recorded() -> None:
    with recording(frozenset({Kind.REGION})) as out, xsp.span("a"), xsp.span("b", level=2):
        pass
    assert out[0]["name"].to_list() == ["a"]


def test_an_exception_passes_and_is_noted() -> None:
    with recording() as out, pytest.raises(KeyError, match="lost"), xsp.span("a"):
        raise KeyError("lost")
    assert out[0]["attr.error"].to_list() == ["KeyError"]


def test_a_span_that_has_not_ended_is_counted_as_lost() -> None:
    model = Model()
    model.start(SystemClock(), Request(ALL))
    late = xsp.span("late")
    late.__enter__()
    records = model.stop()
    late.__exit__(None, None, None)
    assert records.dropped == 1
    assert model.spans(records).height == 0


@pytest.mark.parametrize("deepest", [True, False])
def test_spans_of_a_level_that_nothing_measures_are_named(deepest: bool) -> None:
    model, kinds = Model(), frozenset({Kind.REGION})
    model.start(SystemClock(), Request(kinds, measured=kinds if deepest else frozenset(Kind)))
    with xsp.span("sgemm", level="library"):
        pass
    warnings = model.stop().warnings
    assert len(warnings) == deepest
    assert all("at the library level" in warning for warning in warnings)


def test_threads_keep_their_spans_apart() -> None:
    def work() -> None:
        with xsp.span("inner"):
            pass

    with recording() as out:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert out[0].height == 4


def test_interleaved_tasks_state_their_parents() -> None:
    async def request(name: str, gate: asyncio.Event, other: asyncio.Event) -> None:
        with xsp.span(name):
            gate.set()
            await other.wait()
            with xsp.span(f"{name}.child"):
                await asyncio.sleep(0)

    async def main() -> None:
        one, two = asyncio.Event(), asyncio.Event()
        await asyncio.gather(request("a", one, two), request("b", two, one))

    with recording() as out:
        asyncio.run(main())
    rows: dict[str, dict[str, Any]] = {row["name"]: row for row in out[0].to_dicts()}
    assert rows["a.child"]["parent_id"] == rows["a"]["id"]
    assert rows["b.child"]["parent_id"] == rows["b"]["id"]
    assert rows["a"]["parent_id"] == rows["b"]["parent_id"] == 0


def test_a_decorated_coroutine_is_recorded_until_it_ends() -> None:
    @xsp.span("slow")
    async def slow() -> str:
        await asyncio.sleep(0.002)
        return "done"

    with recording() as out:
        assert asyncio.run(slow()) == "done"
    [row] = out[0].to_dicts()
    assert row["end_ns"] - row["start_ns"] >= 2_000_000


@pytest.mark.parametrize("level", [0, 6, "gpu"])
def test_an_unknown_level_is_refused_at_once(level: int | str) -> None:
    with pytest.raises(ValueError, match=r"Unknown level .*Choose 1"):
        xsp.span("a", level=level)


def test_a_generator_function_cannot_be_wrapped_in_a_span() -> None:
    def stream() -> Iterator[int]:
        yield 1

    async def later() -> AsyncIterator[int]:
        yield 1

    for function in (stream, later):
        with pytest.raises(TypeError, match=f"generator function {function.__name__}"):
            xsp.span("a")(function)
