"""Is the trace of a whole program that of the program without xsp? Real programs, in turns.

Each program runs again and again from the same state: plain, in `with xsp.profile()`, plain, in a
block whose budget is soon spent, plain, and so on. The program reads the clock around its
steps itself (`clocked.py`), in all of its runs. What xsp says in its runs is compared with
what the clock said in the plain runs just before and after.

An error is the median over the turns. The noise is the same for a plain run between two plain
runs: nothing that is smaller can be told from an error.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import Any

import numpy as np
import polars as pl
import torch
from clocked import Clock, Label, Program, digest, seed
from frameworks import FRAMEWORKS, MISSING, be_quiet
from loops import LOOPS
from table import percent, print_header, print_row
from turns import statistic

import xsp

PROGRAMS = {**FRAMEWORKS, **LOOPS}
COLUMNS = (
    ("program", 13),
    ("plain ms", 8),
    ("block", 8),
    ("noise", 7),
    ("named", 7),
    ("named*", 7),
    ("summed", 7),
    ("during", 7),
    ("after", 8),
    ("wait s", 6),
    ("state", 9),
)
HEADINGS, WIDTHS = zip(*COLUMNS, strict=True)
GROUP_COLUMNS = (
    ("  steps", 52),
    ("calls", 6),
    ("plain us", 9),
    ("total", 8),
    ("noise", 7),
    ("latency", 8),
    ("noise", 7),
)
GROUP_HEADINGS, GROUP_WIDTHS = zip(*GROUP_COLUMNS, strict=True)
LEGEND = """
plain ms   wall time of the program without xsp
block      error of the trace's latency; goal: 2 %, or the noise
noise      of the plain runs, in the same way
named      share of the block's latency that lies in a row below the block, or in functions that
           its self time is known to have gone to
named*     the same, where self time of training iterations has a name by their functions only
summed     self times of all rows together, as a share of the block's latency
during     by how much the program is slower in the block
after      by how much what comes after the budget is slower, where the budget is spent before the
           last tenth of the steps
wait s     how long the block takes beyond the program: repetitions, and making the trace
state      what the program leaves behind, bit by bit, with xsp and without
total      error of the time of all steps of the group; latency: of that of one of them"""
SELF = "training iteration"
SAMPLES = 20  # of self time, from which on its functions are named
BRIEF_S = 0.1  # a budget that is soon spent, so that what comes after it can be seen
TAIL = 0.1  # of the steps, which must be left after the last recorded one


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one run of a program.

    Attributes:
        wall_ns: How long the program took, by the clock; without what xsp does after it.
        waited_s: How long xsp took after that.
        clock: What the program's clock says.
        left: Hash of the state that the program left behind.
        profile: The profile, of a run with xsp.
    """

    wall_ns: int
    waited_s: float
    clock: Clock
    left: str
    profile: xsp.profile | None

    @property
    def groups(self) -> dict[Label, list[int]]:
        """Latencies of steps, in ns."""
        result = defaultdict(list)
        for label, begin, end in self.clock.times:
            result[label].append(end - begin)
        return result

    def after(self, number: int) -> int:
        """Return ns from the end of a step to that of the last one."""
        return self.clock.times[-1][2] - self.clock.times[number][2]

    @property
    def recorded(self) -> int:
        """The last step that ended before the budget was spent."""
        assert self.profile is not None
        recorder = self.profile._recorder
        assert recorder is not None
        spent_ns = recorder.begin_ns + BRIEF_S * 1e9
        return sum(end <= spent_ns for _, _, end in self.clock.times) - 1


@dataclass(slots=True)
class Turns:
    """The runs of one program, in their order; plain ones between all others."""

    outcomes: list[Outcome] = field(default_factory=list)

    def errors(
        self, said: Callable[[Outcome], float], plain: Callable[[Outcome], float], settled: bool
    ) -> list[float]:
        """Return errors of what runs with xsp say, against the plain runs around each."""
        runs = self.outcomes
        return [
            said(runs[at]) / np.mean([plain(runs[at - 1]), plain(runs[at + 1])]) - 1
            for at in range(1, len(runs) - 1, 2)
            if at % 4 == (3 if settled else 1)
        ]

    def noise(self, plain: Callable[[Outcome], float]) -> float:
        """Return how far a plain run lies from the plain runs around it."""
        values = [plain(run) for run in self.outcomes[::2]]
        middle = zip(values, values[1:], values[2:], strict=False)
        return float(np.median([abs(b / ((a + c) / 2) - 1) for a, b, c in middle]))

    @property
    def profiled(self) -> list[Outcome]:
        """The runs with xsp's usual plan."""
        return self.outcomes[1::4]


def run(make: Callable[[Clock], Program], times: int, profile: xsp.profile | None) -> Outcome:
    """Run a program from its initial state, so many times one after the other."""
    seed()
    program = make(Clock())
    gc.collect()
    if profile is None:
        begin = perf_counter_ns()
        result = [program.run() for _ in range(times)]
        end = perf_counter_ns()
    else:
        with profile:
            begin = perf_counter_ns()
            result = [program.run() for _ in range(times)]
            end = perf_counter_ns()
        _ = profile.trace
    waited_s = (perf_counter_ns() - end) / 1e9
    return Outcome(end - begin, waited_s, program.clock, digest(result, program.state), profile)


def measure(name: str, given: argparse.Namespace) -> Turns:
    """Run a program in turns, after once that does not count."""
    make, turns = PROGRAMS[name], Turns()
    run(make, given.times, None)
    for _ in range(given.turns):
        usual = xsp.profile(given.levels, budget=given.budget, progress=False)
        brief = xsp.profile(given.levels, budget=BRIEF_S, repeat=False, progress=False)
        turns.outcomes += [run(make, given.times, each) for each in (None, usual, None, brief)]
    turns.outcomes.append(run(make, given.times, None))
    return turns


def self_time(trace: xsp.Trace, names: Sequence[str] = ()) -> float:
    """Return the self time without a name of the block, and of rows of some names, as a share."""
    spans, root = trace.spans, trace.root
    known = spans.filter(spans["parent_id"] == root.span_id)["attributes"].struct.unnest()
    # Other threads work while this one waits.
    busy = known["busy_ns"].sum() if "busy_ns" in known.columns else 0.0
    rows = spans.filter(
        (pl.col("name").is_in(names) & (pl.col("kind") == "region"))
        | (pl.col("span_id") == root.span_id)
    )
    attributes = rows["attributes"].struct.unnest()
    known = pl.zeros(rows.height, eager=True)
    if "self_shares" in attributes.columns:
        enough = attributes["self_samples"] >= SAMPLES
        known = attributes["self_shares"].list.sum().zip_with(enough, known).fill_null(0.0)
    own = (rows["self_ns"].fill_null(0.0) - pl.Series([busy] + [0.0] * (rows.height - 1))).clip(0)
    return float((own * (1.0 - known)).sum()) / (root.latency_ns or 1.0)


def report(name: str, turns: Turns) -> None:
    """Print the lines of one program."""
    traces = [outcome.profile.trace for outcome in turns.profiled if outcome.profile]
    plain = [outcome.wall_ns for outcome in turns.outcomes[::2]]
    cells = [name, f"{np.median(plain) / 1e6:.0f}"]
    cells += [_signed(turns.errors(_block_ns, _wall_ns, settled=False))]
    cells += [percent(turns.noise(_wall_ns))]
    cells += [_share([1 - self_time(trace) for trace in traces])]
    cells += [_share([1 - self_time(trace, [SELF]) for trace in traces])]
    cells += [_share([trace.spans["self_ns"].sum() / trace.root.latency_ns for trace in traces])]
    cells += [_signed(turns.errors(_wall_ns, _wall_ns, settled=False))]
    cells += [_signed(_after(turns))]
    cells += [f"{np.median([outcome.waited_s for outcome in turns.profiled]):.1f}"]
    left = {outcome.left for outcome in turns.outcomes}
    print_row([*cells, "equal" if len(left) == 1 else "DIFFERENT"], WIDTHS)
    for label in turns.outcomes[0].groups:
        _report_group(label, turns)


def _report_group(label: Label, turns: Turns) -> None:
    def plain_total(outcome: Outcome) -> float:
        return float(sum(outcome.groups[label]))

    def plain_latency(outcome: Outcome) -> float:
        return float(statistic(outcome.groups[label]))

    def said_total(outcome: Outcome) -> float:
        return sum(group["total_ns"] for group in _groups(label, outcome)) or np.nan

    def said_latency(outcome: Outcome) -> float:
        known = [group for group in _groups(label, outcome) if group["latency_ns"]]
        calls = sum(group["calls"] for group in known)
        together = sum(group["calls"] * group["latency_ns"] for group in known)
        return together / calls if calls else np.nan

    calls = {sum(group["calls"] for group in _groups(label, each)) for each in turns.profiled}
    seen = len(turns.outcomes[0].groups[label])
    cells = [f"  {label}", f"{seen}" if calls == {seen} else f"{seen}!{max(calls)}"]
    cells += [f"{np.median([plain_latency(each) for each in turns.outcomes[::2]]) / 1e3:.0f}"]
    for said, plain in ((said_total, plain_total), (said_latency, plain_latency)):
        cells += [_signed(turns.errors(said, plain, settled=False)), percent(turns.noise(plain))]
    print_row(cells, GROUP_WIDTHS)


def _groups(label: Label, outcome: Outcome) -> list[dict[str, Any]]:
    assert outcome.profile is not None
    return [g for g in outcome.profile.trace.metadata["groups"] if label.names(g)]


def _wall_ns(outcome: Outcome) -> float:
    return outcome.wall_ns


def _block_ns(outcome: Outcome) -> float:
    assert outcome.profile is not None
    return outcome.profile.trace.root.latency_ns or np.nan


def _after(turns: Turns) -> list[float]:
    """Return by how much what comes after the budget is slower."""
    result, runs = [], turns.outcomes
    for at in range(3, len(runs), 4):
        last, all_of_them = runs[at].recorded, len(runs[at].clock.times)
        if last + 1 < (1 - TAIL) * all_of_them:
            around = np.mean([runs[at - 1].after(last), runs[at + 1].after(last)])
            result.append(runs[at].after(last) / around - 1)
    return result


def _signed(values: Sequence[float]) -> str:
    return f"{100 * np.median(values):+.2f} %" if len(values) else "-"


def _share(values: Sequence[float]) -> str:
    return percent(float(np.median(values)), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, metavar="NAME")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--times", type=int, default=1, help="how often a run does all of it")
    parser.add_argument("--levels", type=int, default=3)
    parser.add_argument("--budget", type=float, default=4.0, help="seconds, as of xsp.profile")
    parser.add_argument("--trees", type=Path, help="folder for the last trace of each program")
    given = parser.parse_args()
    torch.set_num_threads(1)
    be_quiet()
    print_header("Whole programs: xsp against plain clock reads in runs without it, one thread")
    print_row(HEADINGS, WIDTHS)
    print_row(GROUP_HEADINGS, GROUP_WIDTHS)
    begin = perf_counter()
    for name in given.programs or PROGRAMS:
        turns = measure(name, given)
        report(name, turns)
        if given.trees:
            given.trees.mkdir(parents=True, exist_ok=True)
            last = turns.profiled[-1].profile
            assert last is not None
            last.trace.save(given.trees / f"{name}.xsp")
            (given.trees / f"{name}.txt").write_text(last.trace.tree(), encoding="utf-8")
    print(LEGEND)
    if MISSING:
        print(f"left out: programs that need {' and '.join(MISSING)}", file=sys.stderr)
    print(f"{perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
