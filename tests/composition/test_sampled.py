"""What a program ran outside of evaluations: by samples, and by what its thread did in lulls."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from xsp.composition import Lull, Place
from xsp.composition.journal import Pause
from xsp.composition.nested.part import Part
from xsp.composition.own_time import Sampled, own_time
from xsp.level import Kind
from xsp.provider import SAMPLE_SCHEMA

THREAD, OTHER = 1, 2
PARTS = [
    Part("block", Kind.PIPELINE, 0, 1_000, THREAD, -1, -1),
    Part("load", Kind.PIPELINE, 100, 300, THREAD, 0, -1),
    Part("predict", Kind.PIPELINE, 300, 900, THREAD, 0, 0),
]


def samples(*taken: tuple[int, str], thread: int = THREAD) -> pl.DataFrame:
    rows = [
        dict.fromkeys(SAMPLE_SCHEMA)
        | {"time_ns": time_ns, "thread": thread, "function": name, "file": "train.py", "line": 7}
        for time_ns, name in taken
    ]
    return pl.DataFrame(rows, schema=SAMPLE_SCHEMA)


def attributes(
    taken: pl.DataFrame | None = None,
    lulls: tuple[Lull, ...] = (),
    own_ns: float = 100.0,
    pauses: tuple[Pause, ...] = (),
    parts: list[Part] = PARTS,
) -> dict[int, dict[str, Any]]:
    taken = samples() if taken is None else taken
    of = list(range(len(parts)))  # each part is a row
    return own_time(Sampled(taken, lulls, pauses), parts, of, [own_ns] * len(parts))


def lull(time_ns: int, lasts_ns: int, *calls: str, looks: int = 1) -> Lull:
    """Return a look at calls, the outermost first, each a function and the line it was at."""
    stack = (call.partition(":") for call in calls)
    places = tuple(Place(name, f"{name}.py", int(line or 1)) for name, _, line in stack)
    return Lull(time_ns, lasts_ns, looks, places)


def test_samples_belong_to_the_innermost_part_of_their_thread() -> None:
    taken = samples((50, "set_up"), (150, "decode"), (160, "decode"), (170, "flip"), (950, "save"))
    found = attributes(taken)
    assert found[1]["own_functions"] == ["decode", "flip"]
    assert found[1]["own_lines"] == ["train.py:7", "train.py:7"]
    assert found[1]["own_shares"] == [2 / 3, 1 / 3]
    assert found[1]["own_samples"] == 3
    assert sorted(found[0]["own_functions"]) == ["save", "set_up"]


def test_evaluations_and_other_threads_are_not_explained_here() -> None:
    assert attributes(samples((400, "forward"))) == {}
    assert attributes(samples((150, "decode"), thread=OTHER)) == {}


def test_what_xsp_runs_is_not_the_programs() -> None:
    taken = samples((120, "arm"), (150, "decode"), (170, "read"), (180, "decode"))
    pauses = (Pause(THREAD, 165, 175), Pause(THREAD, 110, 130), Pause(OTHER, 140, 190))
    assert attributes(taken, pauses=pauses)[1]["own_functions"] == ["decode"]
    seen = (lull(20, 20, "main", "arm"), lull(60, 20, "main", "load"))
    found = attributes(lulls=seen, own_ns=30.0, pauses=(Pause(THREAD, 0, 30),))
    assert found[0]["own_functions"] == ["load"]


def test_a_lull_is_named_by_where_ways_part() -> None:
    seen = (
        lull(20, 20, "<module>:9", "main:3", "import_model:7", "read"),
        lull(40, 20, "<module>:9", "main:3", "import_model:8", "find"),
        lull(60, 20, "<module>:9", "main:5", "build", "normal"),
        lull(90, 30, "<module>:9", "main:5", "build", "normal"),
    )
    found = attributes(lulls=seen)
    assert found[0]["own_functions"] == ["build", "import_model"]
    assert found[0]["own_lines"] == ["main.py:5", "main.py:3"]
    assert found[0]["own_shares"] == [50 / 90, 40 / 90]
    assert found[0]["own_samples"] == 4


def test_a_line_that_imports_several_modules_is_named_by_their_package() -> None:
    seen = (
        lull(20, 20, "<module>:1", "import torch"),
        lull(40, 20, "<module>:1", "import torch.nn"),
        lull(60, 20, "<module>:2", "import numpy"),
        lull(80, 20, "<module>:2", "import scipy"),
        lull(90, 10, "<module>:3", "import yaml"),
        lull(95, 5, "<module>:3", "main"),
    )
    found = attributes(lulls=seen)[0]["own_functions"]
    assert sorted(found) == ["<module>", "import torch", "imports"]


def test_what_a_call_imports_is_told_as_what_is_imported() -> None:
    seen = tuple(lull(at, 20, "<module>:9", "Adam:3", f"import torch.{at}") for at in (20, 40, 60))
    found = attributes(lulls=(*seen, lull(80, 20, "<module>:12", "save")))[0]
    assert found["own_functions"] == ["import torch", "save"]


def test_a_call_that_lets_nobody_look_is_seen_once_for_all_of_its_time() -> None:
    found = attributes(lulls=(lull(950, 247_000_000, "main", "collect", looks=25),))
    assert found[0]["own_functions"] == ["collect"]
    assert found[0]["own_samples"] == 25


def test_a_way_that_all_go_is_named_by_its_end() -> None:
    found = attributes(lulls=tuple(lull(at, 20, "main", "save", "write") for at in (20, 40, 60)))
    assert found[0]["own_functions"] == ["write"]


def test_waiting_for_a_thread_that_has_rows_is_no_own_time() -> None:
    served = [Part("predict", Kind.PIPELINE, at, at + 20, OTHER, 0, 0) for at in (40, 50)]
    waits = [lull(at, 10, "main", "get") for at in (45, 55, 65)]
    seen = (lull(20, 20, "main", "load"), *waits, lull(90, 20, "main", "save"))
    found = attributes(lulls=seen, own_ns=75.0, parts=[PARTS[0], *served])
    assert found[0]["own_functions"] == ["load", "save"]
    assert found[0]["own_shares"] == [0.5, 0.5]


def test_where_samples_are_few_lulls_speak_if_they_cover_much_of_own_time() -> None:
    seen = (lull(150, 20, "main", "stall"),)
    assert attributes(samples((150, "decode")), seen)[1]["own_functions"] == ["decode"]
    assert attributes(samples((150, "decode")), seen, 30.0)[1]["own_functions"] == ["stall"]
    assert attributes(lulls=seen) == {}


def test_lulls_speak_for_the_time_that_they_last_and_samples_for_the_rest() -> None:
    seen = (lull(120, 60, "main", "import this"), lull(130, 20, "main", "decode"))
    taken = samples(*[(140 + n, "resize") for n in range(15)], *[(160, "flip")] * 5)
    found = attributes(taken, seen, 200.0)[1]
    known = zip(found["own_functions"], found["own_shares"], strict=True)
    assert dict(known) == pytest.approx(
        {"resize": 0.6 * 0.75, "import this": 0.3, "flip": 0.15, "decode": 0.1}
    )
    assert found["own_functions"][:2] == ["resize", "import this"]
    assert found["own_samples"] == 22
    assert attributes(taken, seen, 80.0)[1]["own_shares"] == pytest.approx([0.75, 0.25])


def test_a_long_look_counts_for_its_time() -> None:
    seen = (lull(20, 90, "main:1", "save"), *(lull(at, 2, "main:2") for at in (30, 40, 50)))
    found = attributes(lulls=seen)[0]
    assert (found["own_functions"], found["own_samples"]) == (["save", "main"], 4)
    assert found["own_shares"] == [90 / 96, 6 / 96]


def test_an_import_has_its_full_name_where_there_is_one() -> None:
    seen = tuple(lull(at, 20, "<module>:9", "Adam:3", "import torch._dynamo") for at in (20, 40))
    found = attributes(lulls=(*seen, lull(60, 20, "<module>:12", "save")))[0]
    assert found["own_functions"] == ["import torch._dynamo", "save"]
