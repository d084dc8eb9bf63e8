"""The table of tools: its arithmetic on known times, its protocol with small processes."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import polars as pl
import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
MODULES = ("overhead_table", "tool_table", "tool_readings", "tools", "turns_of_two")
ADDED_NS, STEP_NS = 100_000, 400_000

PROGRAM = """
import sys
from pathlib import Path
from time import thread_time_ns
sys.path.insert(0, {benchmarks!r})
from tool_program import run

def step():
    until = thread_time_ns() + {step_ns}
    while thread_time_ns() < until:
        pass

run(step, Path(sys.argv[1]))
"""


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield a function that imports a module of the benchmarks."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(BENCHMARKS) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


class Drifting:
    """A peer on a machine that becomes slower with every visit of anybody."""

    def __init__(self, module: Any, visits: Iterator[int], step_ns: int, order: list[Any]) -> None:
        self._module, self._visits = module, visits
        self._step_ns, self._order = step_ns, order

    def steps(self, number: int) -> Any:
        self._order.append(self)
        slower = 1 + 0.01 * next(self._visits)
        spent_ns = int(number * self._step_ns * slower)
        return self._module.Visit(spent_ns, 2 * spent_ns)


def test_a_known_cost_is_found_while_the_machine_drifts(benchmark: Any) -> None:
    module, visits, order = benchmark("turns_of_two"), count(), list[Any]()
    bare = Drifting(module, visits, STEP_NS, order)
    tool = Drifting(module, visits, STEP_NS + ADDED_NS, order)
    turns = module.take_turns(bare, tool, 40, 8)
    ratios = [watched.cpu_ns / plain.cpu_ns for plain, watched in turns]
    assert module.estimate([ratios]).value == pytest.approx(1.25, rel=0.002)
    assert order[:4] == [bare, tool, tool, bare]


def test_two_plain_programs_are_found_equal_while_the_machine_drifts(benchmark: Any) -> None:
    module, visits = benchmark("turns_of_two"), count()
    peers = [Drifting(module, visits, STEP_NS, []) for _ in range(2)]
    turns = module.take_turns(*peers, 40, 8)
    found = module.estimate([[tool.cpu_ns / bare.cpu_ns for bare, tool in turns]])
    assert found.low <= 1 <= found.high
    assert found.high - found.low < 0.03


def test_the_interval_holds_what_differs_between_processes(benchmark: Any) -> None:
    module = benchmark("turns_of_two")
    found = module.estimate([[1.67] * 20, [2.12] * 20, [2.19] * 20])
    assert (found.low, found.value, found.high) == (1.67, 2.12, 2.19)
    assert module.estimate([[1.5] * 20]) == module.Estimate(1.5, 1.5, 1.5)


def row(tool: str, pair: int = 0, *, added_ns: int = 0, **more: Any) -> dict[str, Any]:
    """Return a row of a tool that adds so much to each step, and 9 events to it."""
    bare, watched = [8 * STEP_NS] * 4, [8 * (STEP_NS + added_ns)] * 4
    layer = {"name": "Head", "bare_ns": [50.0, None] * 2, "tool_ns": [60.0] * 4}
    return {
        "tool": tool, "program": "transformer", "pair": pair, "steps": 8, "asked": 100,
        "bare_cpu_ns": bare, "bare_wall_ns": bare, "bare_beside_ns": [0] * 4,
        "tool_cpu_ns": watched, "tool_wall_ns": watched, "tool_beside_ns": [320_000] * 4,
        "layers": [layer | {"reported_ns": 75.0}], "enter_s": 3.0, "finish_s": 1.0, "open_s": 0.2,
        "events": 900, "peak_bytes": 5 * 10**8, "written_bytes": 10**6, **more,
    }  # fmt: skip


def cells(text: str, tool: str) -> list[dict[str, str]]:
    """Return the rows of a tool in all tables, by column."""
    found, head = [], list[str]()
    for line in text.splitlines():
        values = [value.strip() for value in line.strip("|").split("|")]
        if values[0] == "tool":
            head = values
        elif values[0] == tool:
            found.append(dict(zip(head, values, strict=True)))
    return found


def test_the_table_says_what_the_rows_say(benchmark: Any) -> None:
    module = benchmark("tool_table")
    rows = [row("none", enter_s=2.0), row("cProfile", added_ns=ADDED_NS)]
    frame = pl.DataFrame(rows, schema=module.SCHEMA)
    ratios, details = cells(module.group_tables(frame), "cProfile")
    assert ratios["transformer, CPU"] == ratios["transformer, wall"] == "1.25 [1.25, 1.25]"
    expected = {
        "all steps": "1.25", "beside": "+0.10", "ns an event": "11,111", "layers": "1.20",
        "reports": "1.50", "enter, s": "+1.0", "finish, s": "+0.0", "open, s": "0.2",
        "peak, MB": "500", "written, MB": "1.0", "lost": "\N{EN DASH}", "privileges": "none",
    }  # fmt: skip
    assert details.items() >= expected.items()


def test_a_cost_within_the_noise_has_no_cost_of_an_event(benchmark: Any) -> None:
    module = benchmark("tool_table")
    frame = pl.DataFrame([row("none"), row("cProfile")], schema=module.SCHEMA)
    _, details = cells(module.group_tables(frame), "cProfile")
    assert details["ns an event"] == "\N{EN DASH}"


def test_a_tool_that_did_not_run_is_a_row_with_its_reason(benchmark: Any) -> None:
    module = benchmark("tool_table")
    failed = {"tool": "nsys", "program": "transformer", "pair": 0, "reason": "needs a GPU"}
    frame = pl.DataFrame([row("none"), failed], schema=module.SCHEMA)
    [found] = cells(module.group_tables(frame), "nsys")
    assert found["transformer, CPU"] == "needs a GPU"


def test_a_new_run_replaces_the_rows_of_its_tools_alone(benchmark: Any, tmp_path: Path) -> None:
    module, path = benchmark("overhead_table"), tmp_path / "results" / "tools.parquet"
    for tool in ("none", "cProfile"):
        for pair in range(2):
            module.keep(row(tool, pair), path, {(tool, "transformer")})
    replaced: set[tuple[str, str]] = set()
    for pair in range(3):
        module.keep(row("cProfile", pair, added_ns=ADDED_NS), path, replaced)
    kept = pl.read_parquet(path)
    assert kept["tool"].to_list() == ["none"] * 2 + ["cProfile"] * 3
    assert path.parent.name == "results"
    assert [each.name for each in path.parent.iterdir()] == ["tools.parquet"]


def test_the_reason_of_a_program_that_fails_is_its_last_line(
    benchmark: Any, tmp_path: Path
) -> None:
    module = benchmark("turns_of_two")
    failing = [sys.executable, "-c", "import sys; sys.exit('The disk is full.')"]
    with pytest.raises(module.ToolError, match=r"^The disk is full\.$"):
        module.Process(failing, tmp_path)


@pytest.mark.slow
def test_a_live_process_that_spends_more_comes_out_at_that(benchmark: Any, tmp_path: Path) -> None:
    module, peers = benchmark("turns_of_two"), []
    for name, step_ns in (("bare", STEP_NS), ("tool", STEP_NS + ADDED_NS)):
        script = tmp_path / f"{name}.py"
        script.write_text(PROGRAM.format(benchmarks=str(BENCHMARKS), step_ns=step_ns))
        folder = tmp_path / name
        peers.append(module.Process([sys.executable, str(script), f"{folder}/pipes"], folder))
    try:
        turns = module.take_turns(*peers, 10, 8)
        for peer in peers:
            peer.stop()
    finally:
        for peer in peers:
            peer.kill()
    ratios = [tool.cpu_ns / bare.cpu_ns for bare, tool in turns]
    assert module.estimate([ratios]).value == pytest.approx(1.25, rel=0.0125)  # 5 µs of 400
    assert [peer.asked for peer in peers] == [90, 90]


@pytest.mark.slow
def test_three_tools_and_an_absent_one_make_a_table(tmp_path: Path) -> None:
    tools = ("cProfile", "torch.profiler", "xsp, levels 2", "nsys")
    command = [sys.executable, str(BENCHMARKS / "overhead_table.py"), "--tools", *tools]
    command += ["--programs", "transformer", "--pairs", "1", "--turns", "2"]
    done = subprocess.run(
        [*command, "--results", str(tmp_path)], capture_output=True, text=True, check=True
    )
    kept = pl.read_parquet(tmp_path / "tools.parquet")
    reasons = dict(kept.select("tool", "reason").rows())
    assert reasons == {"none": None} | dict.fromkeys(tools) | {"nsys": "needs a GPU"}
    layers = kept.filter(pl.col("tool") != "nsys").explode("layers")["layers"].struct.unnest()
    assert set(layers["name"]) == {"Attention", "FeedForward"}
    assert layers["reported_ns"].count() == 4  # of cProfile and xsp
    for tool in tools[1:]:
        assert f"| {tool}" in done.stdout
