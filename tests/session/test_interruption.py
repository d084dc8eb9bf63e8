from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from xsp.session.interruption import Collections, NotedLock
from xsp.testing import FakeClock

THRESHOLD = 2_000


class Ticking:
    """A clock that goes on by 100 ns whenever it is read."""

    def __init__(self) -> None:
        self.clock = FakeClock()

    def now(self) -> int:
        self.clock.advance(100)
        return self.clock.now()


class Noted:
    """What is noted of collections while objects are made."""

    def __init__(self) -> None:
        self.times: list[tuple[int, int]] = []
        self.collections = Collections(Ticking().now, lambda *time: self.times.append(time))

    @property
    def parts(self) -> list[float]:
        return [(end - begin) / 100 for begin, end in self.times]


@pytest.fixture
def noted() -> Iterator[Noted]:
    before, found = gc.get_threshold(), Noted()
    gc.collect()
    gc.set_threshold(THRESHOLD, 1_000, 1_000)
    found.collections.begin()
    try:
        yield found
    finally:
        found.collections.end()
        gc.set_threshold(*before)


def objects(number: int) -> list[list[int]]:
    return [[] for _ in range(number)]


def test_a_collection_is_xsps_as_far_as_its_objects_are(noted: Noted) -> None:
    with noted.collections.own_work():
        kept = objects(THRESHOLD // 4)
    own = objects(THRESHOLD)
    assert len(kept) + len(own) > THRESHOLD
    assert noted.parts == [pytest.approx(0.25, abs=0.03)]


def test_collections_of_the_programs_own_are_its_own(noted: Noted) -> None:
    with noted.collections.own_work():
        objects(THRESHOLD // 2)  # nobody keeps them, but for some that Python keeps for later
    assert objects(3 * THRESHOLD)
    assert sum(noted.parts) < 0.06


def test_a_collection_that_the_program_asks_for_is_its_own(noted: Noted) -> None:
    with noted.collections.own_work():
        kept = objects(THRESHOLD // 2)
    gc.collect()
    assert kept
    assert noted.times == []


def test_objects_count_for_one_collection(noted: Noted) -> None:
    with noted.collections.own_work():
        kept = objects(THRESHOLD // 2)
    own = objects(2 * THRESHOLD + THRESHOLD // 2)
    assert kept
    assert own
    assert len(noted.times) == 1


def test_nothing_is_left_behind() -> None:
    before, collections = list(gc.callbacks), Noted().collections
    collections.begin()
    collections.end()
    assert gc.callbacks == before


def test_who_waits_for_a_lock_notes_how_long_and_nobody_else() -> None:
    waits: list[tuple[str, int, int]] = []
    clock, began, held = FakeClock(), threading.Event(), threading.Event()

    def now() -> int:
        began.set()
        return clock.now()

    def work() -> None:
        with lock:
            held.set()

    lock = NotedLock(now, lambda *time: waits.append((threading.current_thread().name, *time)))
    other = threading.Thread(target=work, name="other")
    with lock, lock:  # as a signal's handler may
        other.start()
        assert began.wait(10)
        clock.advance(50)
        assert not held.is_set()
    other.join(10)
    assert held.is_set()
    (name, begin, end), *more = waits
    assert (name, end - begin, more) == ("other", 50, [])
