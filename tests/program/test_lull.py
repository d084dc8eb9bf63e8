"""What the thread of a block runs while it evaluates nothing for long."""

from __future__ import annotations

import gc
import importlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import xsp
from xsp.composition import Journal, Place
from xsp.program import lull
from xsp.program.lull import Lulls
from xsp_levels.imported import Imports


@contextmanager
def looked_at(
    progress: Callable[[], tuple[int, bool, int]], rest: Callable[[], bool] = lambda: True
) -> Iterator[Journal]:
    journal = Journal(threading.get_ident(), 0)
    lulls = Lulls(journal, progress, rest)
    lulls.begin()
    try:
        yield journal
    finally:
        lulls.end()


def idle() -> None:
    time.sleep(0.2)


def test_a_program_that_evaluates_nothing_is_seen_a_hundred_times_a_second() -> None:
    with looked_at(lambda: (0, False, 0)) as journal:
        idle()
    assert 1 <= len(journal.lulls) <= 21
    assert sum(seen.lasts_ns for seen in journal.lulls) > 100_000_000
    assert sum(seen.looks for seen in journal.lulls) <= 40
    for seen in journal.lulls[1:]:
        names = [place.function for place in seen.stack]
        assert names[-1] == "idle"
        assert "test_a_program_that_evaluates_nothing_is_seen_a_hundred_times_a_second" in names
        assert seen.lasts_ns >= 8_000_000


@pytest.mark.parametrize("inside", [True, False])
def test_a_program_that_evaluates_is_not_looked_at(inside: bool) -> None:
    counts = iter(range(1, 1000))
    with looked_at(lambda: (0 if inside else next(counts), inside, time.monotonic_ns())) as journal:
        idle()
    assert not journal.lulls


def test_time_between_evaluations_is_seen_from_the_end_of_the_last_one_on() -> None:
    count, ended = [0], [0]
    with looked_at(lambda: (count[0], False, ended[0])) as journal:
        for _ in range(5):
            for _ in range(300):  # evaluations in a row: looks become fewer
                count[0], ended[0] = count[0] + 1, time.monotonic_ns()
                time.sleep(0.0005)
            first()
            idle()
    seen = {"first": 0, "idle": 0}
    for look in journal.lulls:
        for place in look.stack:
            if place.function in seen:
                seen[place.function] += look.lasts_ns
    assert sum(seen.values()) > 0.8 * 5 * 400_000_000
    assert seen["first"] == pytest.approx(seen["idle"], rel=0.35)


def first() -> None:
    time.sleep(0.2)


def test_a_collection_of_garbage_is_of_the_program_that_asks_for_it() -> None:
    heap = [[number] for number in range(1_000_000)]
    gc.callbacks.append(told)
    model = torch.nn.Linear(4, 4).eval()
    with torch.inference_mode(), xsp.profile(levels=1, replay=False, progress=False) as prof:
        for _ in range(5):
            model(torch.ones(1, 4))
            collect()
    gc.callbacks.remove(told)
    assert len(heap) == 1_000_000
    root = prof.trace.spans.row(0, named=True)["attributes"]
    named = dict(zip(root["own_functions"], root["own_shares"], strict=True))
    of_it = sum(share for name, share in named.items() if "collect" in name)
    assert of_it > 0.5, named


def told(_phase: str, _facts: dict[str, int]) -> None:
    time.sleep(0.001)  # in which another thread gets Python's lock for sure


def collect() -> None:
    for _ in range(3):
        gc.collect()


def test_nothing_is_looked_at_after_watching_ended() -> None:
    with looked_at(lambda: (0, False, 0)) as journal:
        journal.unwatched_ns = 1
        idle()
    assert len(journal.lulls) <= 1


def test_looks_become_fewer_in_a_long_lull(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lull, "_MANY", 2)
    with looked_at(lambda: (0, False, 0)) as journal:
        idle()
    assert len(journal.lulls) <= 12


@pytest.mark.parametrize(("done", "expected"), [(True, 1), (False, 2)])
def test_what_is_recorded_ends_once_in_a_long_lull(
    monkeypatch: pytest.MonkeyPatch, done: bool, expected: int
) -> None:
    monkeypatch.setattr(lull, "_REST_NS", 50_000_000)
    asked: list[float] = []

    def rest() -> bool:
        asked.append(time.monotonic())
        return done

    began = time.monotonic()
    with looked_at(lambda: (1, False, 0), rest):
        idle()
    assert asked[0] - began > 0.05
    assert len(asked) >= expected
    assert done is False or len(asked) == 1


def test_lulls_like_those_before_end_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lull, "_REST_NS", 30_000_000)
    count, asked = [0], list[int]()

    def rest() -> bool:
        asked.append(count[0])
        return True

    ended = [0]
    with looked_at(lambda: (count[0], False, ended[0]), rest):
        for pause in (0.15, 0.15, 0.15, 0.15, 0.9):
            count[0], ended[0] = count[0] + 1, time.monotonic_ns()
            time.sleep(pause)
    assert asked == [1, 5]


def test_evaluations_that_follow_each_other_slowly_end_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lull, "_REST_NS", 300_000_000)
    monkeypatch.setattr(lull, "_MANY", 1)  # looks soon become few
    count, ended, asked = [0], [0], list[int]()

    def rest() -> bool:
        asked.append(count[0])
        return True

    with looked_at(lambda: (count[0], False, ended[0]), rest):
        for _ in range(30):
            count[0], ended[0] = count[0] + 1, time.monotonic_ns()
            time.sleep(0.04)
    assert not asked


@pytest.mark.parametrize("train", [False, True])
def test_operators_between_evaluations_do_not_pile_up(train: bool) -> None:
    model = torch.nn.Linear(4, 4).train(train)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.set_grad_enabled(train), xsp.profile(levels=2, replay=False) as prof:
        dispatcher = prof._dispatching
        assert dispatcher is not None
        while (recording := dispatcher._recorder.current) is None or len(recording.rung.kinds) < 3:
            loss = model(torch.ones(1, 4)).sum()
            if train:
                loss.backward()
                optimizer.step()
        end = time.monotonic() + 20.0
        while dispatcher._recorder.current is not None and time.monotonic() < end:
            torch.ones(4) + 1
        assert dispatcher._recorder.current is None
        for _ in range(3):
            loss = model(torch.ones(1, 4)).sum()
            if train:
                loss.backward()
                optimizer.step()
    assert prof.trace.metadata["groups"][0]["calls"] >= 4
    assert not [problem for problem in prof.trace.problems if problem.code == "provider"]


def test_what_is_recorded_in_detail_is_not_ended_by_another_thread() -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with xsp.profile(levels=2, replay=False) as prof:
        dispatcher = prof._dispatching
        assert dispatcher is not None
        for _ in range(60):
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
            recording = dispatcher._recorder.current
            if recording is not None and recording.rung.detail:
                time.sleep(0.6)
                assert dispatcher._recorder.current is recording
    assert not [problem for problem in prof.trace.problems if problem.code == "provider"]


def prepare() -> None:
    time.sleep(0.3)


def test_a_program_has_no_more_threads_than_without_xsp() -> None:
    before = threading.active_count()
    with looked_at(lambda: (0, False, 0)) as journal:
        idle()
        assert threading.active_count() == before
    count = len(journal.lulls)
    idle()
    assert len(journal.lulls) == count > 0


def test_a_system_without_room_for_a_thread_names_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("_thread.start_new_thread", full)
    with looked_at(lambda: (0, False, 0)) as journal:
        idle()
    assert not journal.lulls


def test_what_a_block_prepared_is_named_in_its_tree() -> None:
    model, batch = torch.nn.Linear(8, 8), torch.ones(2, 8)
    with torch.inference_mode(), xsp.profile(levels=2, runs=3, replay=False) as prof:
        prepare()
        for _ in range(50):
            model(batch)
    root = prof.trace.spans.unnest("attributes").row(0, named=True)
    assert root["own_functions"][0] == "prepare"
    assert root["own_shares"][0] > 0.8
    assert "└─ prepare " in prof.trace.tree(width=140)


def test_a_trace_can_be_taken_while_looks_go_on() -> None:
    model, batch = torch.nn.Linear(8, 8), torch.ones(2, 8)
    with torch.inference_mode(), xsp.profile(levels=1, runs=3, replay=False) as prof:
        for _ in range(50):
            model(batch)
        for _ in range(5):
            prepare()
            prof.trace.check()


def test_what_an_import_runs_is_named_by_what_was_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "outer_part.py").write_text("import inner_part\n")
    (tmp_path / "inner_part.py").write_text("import time\ntime.sleep(0.2)\n")
    monkeypatch.syspath_prepend(tmp_path)
    watched = Imports({"outer_part"}, lambda: None)  # whose frames are xsp's own
    watched.begin()
    try:
        with looked_at(lambda: (0, False, 0)) as journal:
            importlib.import_module("outer_part")
    finally:
        watched.end()
    named = {seen.stack[-1] for seen in journal.lulls if "sleep" not in seen.stack[-1].function}
    [place] = [place for place in named if place.function.startswith("import")]
    assert place.function == "import outer_part"
    assert place.file == __file__
    sys.modules.pop("outer_part"), sys.modules.pop("inner_part")


def test_a_block_within_an_import_has_names_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "whole_program.py").write_text("from test_lull import look\nlook()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "test_lull", sys.modules[__name__])
    seen.clear()
    importlib.import_module("whole_program")
    sys.modules.pop("whole_program")
    assert seen
    assert all(place.function == "idle" for place in seen)


seen: list[Place] = []


def look() -> None:
    """Look at this thread while it idles."""
    with looked_at(lambda: (0, False, 0)) as journal:
        idle()
    seen.extend(each.stack[-1] for each in journal.lulls if each.looks == 1)
