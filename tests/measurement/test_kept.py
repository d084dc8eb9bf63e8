from __future__ import annotations

import copy
import random
import threading
from collections import Counter, OrderedDict, UserDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xsp.measurement.kept import KeptDict, keep, keep_attributes, keep_random


class Plain:
    def __init__(self) -> None:
        self.a, self.b = 1, "x"


class Guarded(Plain):
    """Refuses what is asked of it, which nobody should notice."""

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("__"):
            raise RuntimeError(name)
        return object.__getattribute__(self, name)

    def __setattr__(self, name: str, value: object) -> None:
        if name not in ("a", "b"):
            raise RuntimeError(name)
        object.__setattr__(self, name, value)


@dataclass(slots=True)
class Slotted:
    a: int = 1


@dataclass(frozen=True)
class Frozen:
    a: int = 1


def grow(value: Any) -> None:
    value.append(7)


@pytest.mark.parametrize(
    ("value", "change"),
    [
        ([1, 2], grow),
        ([1, 2], list.clear),
        (deque([1, 2], maxlen=2), grow),
        (bytearray(b"ab"), grow),
        ({1, 2}, set.clear),
        ({"a": 1, "b": 2}, lambda d: d.pop("a")),
        ({"a": 1, "b": 2}, lambda d: d.update(c=3)),
        (defaultdict(list), lambda d: d["new"]),
        (Counter("ab"), lambda c: c.update("b")),
        (OrderedDict(a=1, b=2), lambda d: d.move_to_end("a")),
        (OrderedDict(a=1, b=2), lambda d: d.pop("a")),
        (np.arange(4.0), lambda a: a.__imul__(2)),
        (random.Random(1), lambda r: r.random()),
        (np.random.default_rng(1), lambda r: r.random()),
    ],
)
def test_what_a_container_held_is_put_back(value: Any, change: Callable[[Any], object]) -> None:
    before = copy.deepcopy(value)
    kept = keep(value, 100)
    assert kept is not None
    assert not kept.changed()
    change(value)
    assert kept.changed()
    assert not kept.obstacle()
    kept.put_back()
    assert not kept.changed()
    assert str(keep_state(value)) == str(keep_state(before))


def keep_state(value: Any) -> Any:
    if isinstance(value, random.Random):
        return value.getstate()
    return value.bit_generator.state if isinstance(value, np.random.Generator) else value


@given(
    st.dictionaries(st.text(max_size=2), st.integers() | st.floats() | st.none(), max_size=6),
    st.dictionaries(st.text(max_size=2), st.integers() | st.floats() | st.none(), max_size=6),
    st.sets(st.text(max_size=2), max_size=3),
)
def test_any_dictionary_is_put_back_in_its_order(
    held: dict[str, Any], written: dict[str, Any], gone: set[str]
) -> None:
    value = dict(held)
    kept = keep(value, 0)
    assert kept is not None
    value.update(written)
    for key in gone:
        value.pop(key, None)
    kept.put_back()
    assert list(value) == list(held)
    assert all(value[key] is held[key] for key in held)
    assert not kept.changed()


def test_keys_are_put_back_one_by_one() -> None:
    value = {"ready": False, "calls": 0}
    kept = keep(value, 0)
    assert isinstance(kept, KeptDict)
    value.update(ready=True, calls=1, last=2)
    assert kept.changed_keys() == ["ready", "calls", "last"]
    kept.put_back_keys(["calls", "last"])
    assert value == {"ready": True, "calls": 0}


def test_an_equal_number_is_no_change() -> None:
    value = {"n": 1000.5, "m": 1}
    kept = keep(value, 0)
    assert kept is not None
    value["n"] = float("1000.5")
    assert not kept.changed()
    value["m"] = True
    assert kept.changed()


@pytest.mark.parametrize(
    "value", [Plain(), Guarded(), Slotted(), Frozen(), SimpleNamespace(a=1), UserDict(a=1)]
)
def test_attributes_are_put_back_past_the_objects_own_code(value: Any) -> None:
    (kept,) = keep_attributes(value)
    name = "data" if isinstance(value, UserDict) else "a"
    before = object.__getattribute__(value, name)
    object.__setattr__(value, name, [2])
    assert kept.changed()
    kept.put_back()
    assert object.__getattribute__(value, name) is before
    assert not kept.changed()


def test_a_slot_that_was_empty_is_empty_again() -> None:
    value = Slotted()
    del value.a
    (kept,) = keep_attributes(value)
    assert list(kept.children()) == []
    value.a = 3
    assert kept.changed()
    kept.put_back()
    assert not hasattr(value, "a")


@pytest.mark.parametrize("value", [threading.Lock(), threading.current_thread(), int, 3, len])
def test_pythons_own_objects_are_not_looked_into(value: object) -> None:
    assert keep_attributes(value) == []


def test_an_array_without_room_or_of_another_shape_says_what_stands_against_it() -> None:
    value = np.zeros(1000)
    large = keep(value, 7999)
    assert large is not None
    assert "too many to keep a copy of" in large.obstacle()
    assert large.nbytes == 0
    kept = keep(value, 8000)
    assert kept is not None
    assert kept.nbytes == 8000
    value.resize(500, refcheck=False)
    assert kept.changed()
    assert kept.obstacle() == "which has another shape"
    value.flags.writeable = False
    assert keep(value, 8000) is None


def test_random_numbers_are_put_back() -> None:
    put_back = keep_random()
    drawn = random.random(), np.random.rand()
    put_back()
    assert (random.random(), np.random.rand()) == drawn
