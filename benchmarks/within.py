"""Are times read from a program those without xsp? A judge inside one run.

Whole runs on a shared machine differ by more than xsp may be wrong. Here stretches in which every
hook is out take turns with recorded ones, and each recorded stretch is compared with the two beside
it. The program reads the clock around each of its units (a call, or a training step). *Raw* is by
how much the program was slower, *read* by how much what xsp reads from the log is still longer.

The first units after each change do not count: caches are cold, and a profiler has just ended.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic_ns, perf_counter, thread_time_ns

import numpy as np
import torch
from frameworks import be_quiet
from numpy.typing import NDArray
from table import print_header, print_row
from torch import nn
from torch.nn import functional

from xsp.level import Level
from xsp.provider import BACKWARD, CALL, OPTIMIZER
from xsp.reading.program import read as reading
from xsp.reading.program.cost import CALL_NS, PASS_NS, STEP_NS
from xsp.reading.program.forest import Forest, forest_of, in_windows, with_times
from xsp.reading.program.naming import naming_of
from xsp.record.program import Lottery, ProgramRecord, Recorder, Records
from xsp.record.session import select

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Program = Callable[["Judge"], None]
Clock = Callable[[], int]

STRETCH_NS = 40_000_000
SETTLING = 3  # units after each change, which do not count
FEWEST = 4  # stretches of a kind, below which nothing is said
TRIM = 0.2
KINDS = (Records.NOTHING, Records.LAYERS, Records.OPERATORS)
COLUMNS = (
    ("program", 26),
    ("unit us", 8),
    ("modules", 7),
    ("window", 9),
    ("raw %", 15),
    ("read %", 15),
    ("read us", 15),
    ("n", 4),
)
HEADINGS, WIDTHS = zip(*COLUMNS, strict=True)
SLOW_COLUMNS = (("slowdown while recorded", 30), ("raw ns", 16), ("read ns", 16), ("n", 4))
SLOW_HEADINGS, SLOW_WIDTHS = zip(*SLOW_COLUMNS, strict=True)
LEGEND = """
raw    by how much a unit took longer in windows of a kind than without hooks (± standard error)
read   the same of what xsp reads from the log; n: stretches, compared with the two beside each"""


class Deck(Lottery):
    """Draws kinds of windows more evenly than a program's, and none that is longer than half."""

    def __init__(self, seed: int, longest_ns: int) -> None:
        super().__init__(seed, layers=True, operators=True)
        self._longest_ns = longest_ns

    def draw(self, elapsed_ns: int, cost: float | None) -> Records:
        """Return the kinds of span that the next window records."""
        self.drawn += 1
        kinds, weights = (Records.LAYERS, Records.OPERATORS, Records.NOTHING), (5, 2, 3)
        return self._random.choices(kinds, weights)[0]

    def length_ns(self, records: Records, elapsed_ns: int) -> int:  # type: ignore[override]
        """Return for how long a window lasts."""
        return self._longest_ns


@dataclass(slots=True)
class Judge:
    """Takes the hooks out and puts them back in, and notes how long units took.

    Attributes:
        recorder: Records the program.
        stretch_ns: How long a stretch lasts.
        clock: What units are timed by, ns.
        begins: When each unit began, ns; `ends`: when it ended.
        took_ns: How long each took by the clock.
        stretches: The number of the stretch of each; hooks are in in even ones.
    """

    recorder: Recorder
    stretch_ns: int
    clock: Callable[[], int]
    begins: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    took_ns: list[int] = field(default_factory=list)
    stretches: list[int] = field(default_factory=list)
    number: int = 0
    since_ns: int = 0

    @contextmanager
    def unit(self) -> Iterator[None]:
        """Read the clock around one unit of the program."""
        begin, before = monotonic_ns(), self.clock()
        yield
        after, end = self.clock(), monotonic_ns()
        self.took_ns.append(after - before)
        self.begins.append(begin)
        self.ends.append(end)
        self.stretches.append(self.number)
        if end - self.since_ns > self.stretch_ns:
            self.turn()

    def turn(self) -> None:
        """Take the hooks out, or put them back in."""
        self.number += 1
        if self.number % 2:
            self.recorder.suspend(between=True)
        else:
            self.recorder.resume()
        self.since_ns = monotonic_ns()


@dataclass(frozen=True, slots=True)
class Units:
    """The units of a run.

    Attributes:
        stretch: Number of the stretch of each unit; hooks are in in even ones.
        kind: What its window recorded; -1: hooks were out.
        took_ns: How long it took.
        read_ns: How long it took by what xsp reads from the log.
        modules: How many modules' calls a unit has, on average.
    """

    stretch: Ints
    kind: Ints
    took_ns: Floats
    read_ns: Floats
    modules: float

    def compared(self, values: Floats, kind: int) -> list[tuple[float, float]]:
        """Return for each stretch with such windows its units' time, and that without hooks."""
        out = {
            n: trimmed(self.took_ns[self.stretch == n]) for n in np.unique(self.stretch).tolist()
            if n % 2
        }  # fmt: skip
        result = []
        for n in np.unique(self.stretch[self.kind == kind]).tolist():
            mine = values[(self.stretch == n) & (self.kind == kind)]
            beside = [out[each] for each in (n - 1, n + 1) if each in out]
            if len(mine) >= 2 and len(beside) == 2:
                result.append((trimmed(mine), float(np.mean(beside))))
        return result


def trimmed(values: Floats) -> float:
    """Return the 20 % trimmed mean."""
    values = np.sort(values)
    cut = int(TRIM * len(values))
    return float(values[cut : len(values) - cut].mean())


def with_error(values: Floats) -> tuple[float, float]:
    """Return the trimmed mean with its standard error."""
    ordered = np.sort(values)
    cut = int(TRIM * len(ordered))
    spread = np.clip(ordered, ordered[cut], ordered[len(ordered) - 1 - cut]).std(ddof=1)
    return trimmed(values), float(spread / ((1 - 2 * TRIM) * len(values) ** 0.5))


def judge(program: Program, seconds: float, stretch_ns: int, seed: int, clock: Clock) -> Units:
    """Run a program for some seconds, and return its units."""
    selection = select([Level.MODEL, Level.FRAMEWORK])
    recorder = Recorder(selection, budget_s=None, seed=seed)
    gc.collect()
    recorder.begin()
    recorder.lottery = Deck(seed, stretch_ns // 2)
    one = Judge(recorder, stretch_ns, clock, since_ns=monotonic_ns())
    until = perf_counter() + seconds
    while perf_counter() < until:
        program(one)
    recorder.end()
    return units_of(one, recorder.record())


def units_of(one: Judge, record: ProgramRecord) -> Units:
    """Return the units of a run, those left out that follow a change."""
    begin, end = np.array(one.begins), np.array(one.ends)
    stretch = np.array(one.stretches)
    starts = np.array([window.begin_ns for window in record.windows] or [0])
    kinds = np.array([window.records for window in record.windows] or [Records.NOTHING])
    first, last = (np.searchsorted(starts, each, side="right") - 1 for each in (begin, end))
    place = np.where(stretch % 2 == 0, last, -1 - stretch)  # of the same window, or stretch
    settled = np.ones(len(begin), bool)
    for back in range(1, SETTLING + 1):
        settled[:back] = False
        settled[back:] &= place[back:] == place[:-back]
    settled &= (first == last) | (stretch % 2 == 1)
    forest = timed_forest(record)
    took = np.array(one.took_ns, dtype=np.float64)
    kind = np.where(stretch % 2 == 0, np.where(last >= 0, kinds[np.maximum(last, 0)], -2), -1)
    read = took - added(forest, begin, end)
    called = np.bincount(forest.call[forest.call >= 0])
    modules = float(called[called > 1].mean() + 1) if (called > 1).any() else 1.0
    return Units(stretch[settled], kind[settled], took[settled], read[settled], modules)


def timed_forest(record: ProgramRecord) -> Forest:
    """Return the items of a run with the time that each took without xsp."""
    forest = forest_of(record)
    layered, deep_at = in_windows(forest, record)
    untimed = reading._untimed(forest)
    deep = reading._deep(forest, record, naming_of(untimed, record))
    operators = [deep.operator_begins(thread) for thread, _ in record.log.threads]
    return with_times(forest, record, operators, layered, deep_at)


def added(forest: Forest, begin: Ints, end: Ints) -> Floats:
    """Return the recording cost that xsp subtracts from each unit, in ns.

    That is what is subtracted from each call, pass and step in it, and what their hooks cost.
    """
    items = forest.items
    price = np.zeros(items.kind.max() + 1)
    price[[CALL, BACKWARD, OPTIMIZER]] = CALL_NS, PASS_NS, STEP_NS
    outermost = price[items.kind] > 0
    outermost &= price[items.kind[np.maximum(forest.parent, 0)]] == 0
    at = np.flatnonzero(outermost)
    unit = np.searchsorted(begin, items.begin[at], side="right") - 1
    inside = (unit >= 0) & (items.end[at] <= end[unit])
    at, unit = at[inside], unit[inside]
    hooks = price[items.kind[at]] + items.noted[at]
    return np.bincount(unit, forest.added_ns[at] + hooks, len(begin))


class Block(nn.Module):
    """A block of a small transformer, of ten modules."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.up, self.act = nn.Linear(width, 2 * width), nn.GELU()
        self.down = nn.Linear(2 * width, width)

    def forward(
        self, x: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """Return the output, and the keys and values with those of the cache before them."""
        inner = self.first(x)
        query, key, value = self.query(inner), self.key(inner), self.value(inner)
        if cache is not None:
            key, value = torch.cat([cache[0], key], 1), torch.cat([cache[1], value], 1)
        x = x + self.out(functional.scaled_dot_product_attention(query, key, value))
        return x + self.down(self.act(self.up(self.second(x)))), (key, value)


class Tower(nn.Module):
    """Some blocks, one after the other."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))

    def forward(self, x: torch.Tensor, caches: list[object] | None = None) -> object:
        """Return the output, and what each block keeps where caches are given."""
        made: list[object] = []
        for block, cache in zip(self.blocks, caches or [None] * len(self.blocks), strict=True):
            x, kept = block(x, cache)
            made.append(kept)
        return x if caches is None else (x, made)


def training(model: nn.Module, x: torch.Tensor, classes: int) -> Program:
    """Return a program that trains a model."""
    y = torch.randint(0, classes, (len(x),))
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)

    def program(judge: Judge) -> None:
        for _ in range(20):
            optimizer.zero_grad()
            with judge.unit():
                functional.cross_entropy(model(x), y).backward()
                optimizer.step()

    return program


def mlp() -> Program:
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    return training(model, torch.randn(8, 16), 4)


def cnn() -> Program:
    def layer(before: int, after: int) -> list[nn.Module]:
        return [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]

    layers = [*layer(3, 16), *layer(16, 16), nn.MaxPool2d(2), *layer(16, 32), *layer(32, 32)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    return training(model, torch.randn(8, 3, 32, 32), 10)


def transformer() -> Program:
    model, x = Tower(8).eval(), torch.randn(1, 16, 64)

    def program(judge: Judge) -> None:
        with torch.no_grad():
            for _ in range(20):
                with judge.unit():
                    model(x)

    return program


def decode() -> Program:
    """Return a program that decodes 32 tokens again and again, with a cache that grows."""
    model, prompt = Tower(4).eval(), torch.randn(1, 16, 64)

    def program(judge: Judge) -> None:
        with torch.no_grad():
            _, caches = model(prompt, [None] * 4)
            for _ in range(32):
                with judge.unit():
                    _, caches = model(prompt[:, :1], caches)

    return program


def one_call() -> Program:
    model, x = nn.Linear(64, 64), torch.randn(8, 64)

    def program(judge: Judge) -> None:
        with torch.no_grad():
            for _ in range(50):
                with judge.unit():
                    model(x)

    return program


def one_pass() -> Program:
    model, x = nn.Linear(64, 64), torch.randn(8, 64)

    def program(judge: Judge) -> None:
        for _ in range(50):
            model.zero_grad()
            loss = model(x).sum()  # windows begin at calls
            with judge.unit():
                loss.backward()

    return program


def one_step() -> Program:
    model, x = nn.Linear(64, 64), torch.randn(8, 64)
    model(x).sum().backward()
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)

    def program(judge: Judge) -> None:
        for _ in range(50):
            with torch.no_grad():
                model(x)  # windows begin at calls
            with judge.unit():
                optimizer.step()

    return program


PROGRAMS: dict[str, tuple[str, Callable[[], Program], int]] = {
    "mlp": ("MLP, training step", mlp, STRETCH_NS),
    "transformer": ("transformer, call", transformer, STRETCH_NS),
    "decode": ("decoding, call", decode, STRETCH_NS),
    "cnn": ("CNN, training step", cnn, 6 * STRETCH_NS),
}
ALONE = {
    "an outermost call, alone": one_call,
    "a backward pass, alone": one_pass,
    "an optimizer's step, alone": one_step,
}


def report(name: str, seconds: float, seed: int, clock: Clock) -> None:
    """Print a line for each kind of window of a program, and what a module's call costs in it."""
    title, make, stretch_ns = PROGRAMS[name]
    units = judge(make(), seconds, stretch_ns, seed, clock)
    bare = trimmed(units.took_ns[units.kind == -1])
    for kind in KINDS:
        pairs = units.compared(units.took_ns, kind)
        if len(pairs) < FEWEST:
            continue
        raw, truth = np.array(pairs).T
        read = np.array(units.compared(units.read_ns, kind))[:, 0]
        cells = [title, f"{bare / 1e3:.0f}", f"{units.modules:.0f}", kind.name.lower()]
        for values, scale in (
            (raw / truth - 1, 100),
            (read / truth - 1, 100),
            (read - truth, 1e-3),
        ):
            mean, error = with_error(values)
            cells.append(f"{scale * mean:+.2f} ± {scale * error:.2f}")
        print_row([*cells, str(len(pairs))], WIDTHS)


def slowdown(
    title: str, make: Callable[[], Program], seconds: float, seed: int, clock: Clock
) -> None:
    """Print by how much a unit that is one thing alone is slower while it is recorded."""
    units = judge(make(), seconds, STRETCH_NS, seed, clock)
    print_slow(title, units, Records.LAYERS, 1.0)


def print_slow(title: str, units: Units, kind: int, per: float) -> None:
    """Print by how much something is slower, of which there are so many in a unit."""
    cells = [title]
    for values in (units.took_ns, units.read_ns):
        slow, truth = np.array(units.compared(values, kind)).T
        mean, error = with_error((slow - truth) / per)
        cells.append(f"{mean:+.0f} ± {error:.0f}")
    print_row([*cells, str(len(slow))], SLOW_WIDTHS)


def per_module(seconds: float, seed: int, clock: Clock) -> None:
    """Print by how much a call of one module inside of a model is slower while it is recorded."""
    units = judge(transformer(), seconds, STRETCH_NS, seed, clock)
    for kind, what in ((Records.LAYERS, "recorded"), (Records.NOTHING, "not recorded")):
        print_slow(f"a module's call, {what}", units, kind, units.modules)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=[*PROGRAMS])
    parser.add_argument("--seconds", type=float, default=15.0, help="of each program")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--processor", action="store_true",
        help="time units by the thread's processor time, where others keep the machine busy",
    )  # fmt: skip
    given = parser.parse_args()
    clock = thread_time_ns if given.processor else monotonic_ns
    torch.set_num_threads(1)
    torch.manual_seed(0)
    be_quiet()
    print_header("Recorded stretches against stretches without hooks, inside one run, one thread")
    print_row(HEADINGS, WIDTHS)
    for seed in range(given.rounds):
        for name in given.programs:
            report(name, given.seconds, seed, clock)
    print(LEGEND)
    print()
    print_row(SLOW_HEADINGS, SLOW_WIDTHS)
    per_module(given.seconds, given.rounds, clock)
    for title, make in ALONE.items():
        slowdown(title, make, given.seconds / 3, given.rounds, clock)


if __name__ == "__main__":
    main()
