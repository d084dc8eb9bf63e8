"""A GPU that is simulated: a known tree of host spans and of what they launched, as rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np
import polars as pl
from hypothesis import strategies as st

from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.matching.run import Pass, Run, ladder
from xsp.provider.row import SpanRows, span_rows
from xsp.reading.correlation.parent import Trees, correlate

MAIN, WORKER = 100, 200
HOST = (Kind.REGION, Kind.LAYER, Kind.OP, Kind.CALL, Kind.LAUNCH)
EVERYTHING = frozenset({*HOST, *DEVICE_ACTIVITIES, Kind.SYNC})


@dataclass(frozen=True)
class Work:
    """Work that a launch gives a device."""

    name: str = "gemm"
    length_ns: int = 5_000
    kind: Kind = Kind.KERNEL
    device: int = 0
    stream: int = 7
    delay_ns: int = 2_000
    node: int | None = None  # of a graph


@dataclass(frozen=True)
class Step:
    """A host span: its self time goes before, between and after the steps inside it."""

    kind: Kind
    name: str
    steps: tuple[Step, ...] = ()
    works: tuple[Work, ...] = ()
    own_ns: int = 1_000
    thread: int = MAIN
    twice: bool = False  # a call of the runtime with one of the driver in it, of one id
    endless: bool = False  # its library does not tell when it ends


@dataclass
class Played:
    """Rows, and what correlation must make of them.

    `attr.made` numbers all rows, `attr.home` is that of the right parent.
    """

    roots: SpanRows
    rows: SpanRows

    def correlate(self, seed: int = 0, *, synchronous: bool = False) -> Trees:
        shuffled = np.random.default_rng(seed).permutation(self.rows.height)
        return correlate(self.roots, self.rows[shuffled], synchronous=synchronous)

    def without(self, *made: int) -> Played:
        return Played(self.roots, self.rows.filter(~pl.col("attr.made").is_in(made)))


class Gpu:
    """Plays a model: on the host, and on the streams of its devices.

    Args:
        model: What one step does, step by step; steps of other threads beside it.
        cost_ns: What recording one host span takes: half before it and half after it.
        noise: Relative standard deviation of every time.
        drain: Whether a step waits for the devices before it ends.
        blocking: Whether each launch waits for what it launched.
        seed: Of the noise.
    """

    def __init__(
        self,
        model: Sequence[Step],
        *,
        cost_ns: int = 0,
        noise: float = 0.0,
        drain: bool = True,
        blocking: bool = False,
        seed: int = 0,
    ) -> None:
        self.model = tuple(model)
        self.cost_ns, self.noise, self.drain, self.blocking = cost_ns, noise, drain, blocking
        self.random = np.random.default_rng(seed)
        self.kinds: frozenset[Kind] = EVERYTHING
        self.now = 1_000_000
        self.made = self.correlation = self.waited = 0
        self.free: dict[tuple[int, int], int] = {}
        self.rows: list[dict[str, Any]] = []

    def play(self, evaluations: int = 1, kinds: frozenset[Kind] = EVERYTHING) -> Played:
        self.kinds, self.rows = kinds, []
        roots = [self._evaluation() for _ in range(evaluations)]
        return Played(_as_rows(roots), _as_rows(self.rows))

    def measure(self, rounds: int) -> list[Run]:
        """Return the runs of interleaved rounds over the whole ladder."""
        passes = ladder(EVERYTHING)
        return [self.run(pass_, number) for number in range(rounds) for pass_ in passes]

    def run(self, pass_: Pass, number: int = 0) -> Run:
        played = self.play(1, pass_.kinds)
        frame = played.correlate().frames[0] if pass_.kinds else None
        latency = int((played.roots["end_ns"] - played.roots["start_ns"])[0])
        return Run(pass_, latency, frame, 0, number, latency - self.waited)

    def _evaluation(self) -> dict[str, Any]:
        root = self._row(Kind.REGION, "predict", home=-1, thread=MAIN)
        begin = self.now
        ends = []
        for thread in (MAIN, WORKER):
            self.now = begin + 1
            for step in self.model:
                if step.thread == thread:
                    self._step(step, root["attr.made"], root["attr.made"])
            ends.append(self.now + 1)
        returned = self.now = max(ends)
        if self.drain:
            self.now = max(returned, *self.free.values(), 0)
        self.waited = self.now - returned
        root.update(start_ns=begin, end_ns=self.now)
        self.now += 10
        return root

    def _step(self, step: Step, home: int, outside: int) -> None:
        """Run a step that lies in `home`, with `outside` the innermost that is no launch."""
        recorded = step.kind in self.kinds
        cost = self.cost_ns if recorded else 0
        self.now += cost // 2
        row = self._row(step.kind, step.name, home=home, thread=step.thread)
        begin, inner = self.now, row["attr.made"] if recorded else home
        own = self._length(step.own_ns) // (len(step.steps) + 1)
        if step.kind is Kind.LAUNCH:
            self.correlation += 1
            row["correlation_id"] = self.correlation
            if step.twice and recorded:
                self.rows.append(self._row(Kind.LAUNCH, f"cu{step.name}", inner, step.thread))
                times = {"start_ns": begin + 1, "end_ns": begin + own - 1}
                self.rows[-1].update(times, correlation_id=self.correlation)
            for work in step.works:
                self._work(work, begin, outside if work.node is None else inner)
        self.now += own
        for each in step.steps:
            self._step(each, inner, outside if step.kind is Kind.LAUNCH else inner)
            self.now += own
        row.update(start_ns=begin, end_ns=None if step.endless else self.now)
        if recorded:
            self.rows.append(row)
        self.now += cost - cost // 2

    def _work(self, work: Work, launched: int, home: int) -> None:
        queue = (work.device, work.stream)
        begin = launched + self._length(work.delay_ns)
        if work.kind is not Kind.SYNC:
            begin = max(begin, self.free.get(queue, 0))
        end = begin + self._length(work.length_ns)
        if work.kind is not Kind.SYNC:
            self.free[queue] = end
        if self.blocking:
            self.now = max(self.now, end)
        if work.kind in self.kinds:
            row = self._row(work.kind, work.name, home=home, thread=None)
            row.update(start_ns=begin, end_ns=end, device=work.device, stream=work.stream)
            row.update({"correlation_id": self.correlation, "attr.graph_node": work.node})
            self.rows.append(row)

    def _row(self, kind: Kind, name: str, home: int, thread: int | None) -> dict[str, Any]:
        self.made += 1
        known = {"kind": kind.value, "name": name, "thread": thread}
        return dict.fromkeys(_COLUMNS) | known | {"attr.made": self.made, "attr.home": home}

    def _length(self, ns: int) -> int:
        return max(1, round(ns * (1 + self.noise * self.random.standard_normal())))


_COLUMNS = (
    *("kind", "name", "start_ns", "end_ns", "thread", "device", "stream", "correlation_id"),
    *("attr.made", "attr.home", "attr.graph_node"),
)


def _as_rows(spans: list[dict[str, Any]]) -> SpanRows:
    columns = {name: [span[name] for span in spans] for name in _COLUMNS}
    mine = pl.col("attr.made", "attr.home", "attr.graph_node").cast(pl.Int64)
    return span_rows(columns).with_columns(mine)


def homes(frame: pl.DataFrame) -> dict[int, int]:
    """Return for each row of a tree the `attr.made` of its parent; -1 for the root."""
    made = frame["attr.made"].to_list()
    return {
        own: made[above] if above >= 0 else -1
        for own, above in zip(made, frame["parent"].to_list(), strict=True)
    }


def right_homes(frame: pl.DataFrame) -> dict[int, int]:
    return dict(frame.select("attr.made", "attr.home").iter_rows())


def launch(*works: Work, name: str = "cudaLaunchKernel", **more: Any) -> Step:
    return Step(Kind.LAUNCH, name, works=works, **more)


def transformer(blocks: int = 3, **more: Any) -> tuple[Step, ...]:
    """Return blocks of layers whose operators launch kernels, copies and sets on two streams."""

    def linear(name: str) -> Step:
        gemm = Step(Kind.CALL, "cublasLtMatmul", (launch(Work(length_ns=40_000)),))
        copy = launch(
            Work("Memcpy HtoD", 3_000, Kind.MEMCPY, stream=9), name="cudaMemcpyAsync", **more
        )
        zero = launch(Work("Memset", 1_000, Kind.MEMSET), name="cudaMemsetAsync")
        return Step(Kind.LAYER, name, (Step(Kind.OP, "aten::addmm", (zero, gemm, copy)),))

    def block(number: int) -> Step:
        add = Step(Kind.OP, "aten::add", (launch(Work("vectorized_add", 6_000)),))
        return Step(Kind.LAYER, f"block{number}", (linear("fc1"), add, linear("fc2")))

    model = Step(Kind.LAYER, "Model", tuple(block(i) for i in range(blocks)))
    wait = launch(Work("Stream Sync", 8_000, Kind.SYNC), name="cudaStreamSynchronize")
    return (model, wait)


def works() -> st.SearchStrategy[Work]:
    return st.builds(
        Work,
        name=st.sampled_from(["gemm", "add", "copy"]),
        length_ns=st.integers(1, 400),
        kind=st.sampled_from([*DEVICE_ACTIVITIES, Kind.SYNC]),
        device=st.integers(0, 1),
        stream=st.sampled_from([7, 9]),
        delay_ns=st.integers(1, 900),
    )


@st.composite
def launches(draw: st.DrawFn, thread: int) -> Step:
    """Draw a launch of nothing, of something, or of a graph."""
    nodes = draw(st.booleans())
    count = draw(st.integers(0, 4 if nodes else 1))
    made = [draw(works()) for _ in range(count)]
    if nodes:
        made = [
            Work(w.name, w.length_ns, w.kind, w.device, w.stream, w.delay_ns, node=i + 1)
            for i, w in enumerate(made)
        ]
    name = "cudaGraphLaunch" if nodes else "cudaLaunchKernel"
    twice, own = draw(st.booleans()), draw(st.integers(4, 30))
    return launch(*made, name=name, thread=thread, twice=twice, own_ns=own)


@st.composite
def steps(draw: st.DrawFn, *, outermost: int = 1, depth: int = 3, thread: int = MAIN) -> Step:
    """Draw a host span of kind `HOST[outermost]` or deeper, with what it holds."""
    kind = draw(st.sampled_from(HOST[outermost:]))
    if kind is Kind.LAUNCH:
        return draw(launches(thread))
    below = steps(outermost=HOST.index(kind), depth=depth - 1, thread=thread)
    inside = draw(st.lists(below, max_size=3)) if depth else []
    name = draw(st.sampled_from(["a", "b"]))
    return Step(kind, name, tuple(inside), own_ns=draw(st.integers(8, 60)), thread=thread)


@st.composite
def models(draw: st.DrawFn) -> tuple[Step, ...]:
    """Draw what one step does, on one thread or two."""
    main = draw(st.lists(steps(), min_size=1, max_size=3))
    return (*main, *draw(st.lists(steps(thread=WORKER, depth=2), max_size=2)))


def endless(model: Sequence[Step]) -> tuple[Step, ...]:
    """Return the model with calls without an end wherever launches tell it rightly.

    That is where a call holds launches alone, and no launch of the same span follows it.
    """
    return tuple(
        replace(
            step,
            steps=endless(step.steps),
            endless=step.kind is Kind.CALL
            and len(step.steps) > 0
            and all(inner.kind is Kind.LAUNCH for inner in step.steps)
            and (after is None or after.kind is not Kind.LAUNCH or after.thread != step.thread),
        )
        for step, after in zip_longest(model, model[1:])
    )


def walk(model: Sequence[Step]) -> Iterator[Step]:
    """Yield every step of a model."""
    for step in model:
        yield step
        yield from walk(step.steps)


def repeated(ops: int) -> Step:
    """Return a layer of many operators of two launches with a kernel each."""
    kernel = launch(Work(length_ns=300), own_ns=40)
    op = Step(Kind.OP, "aten::mm", (kernel, kernel), own_ns=60)
    parts = Step(Kind.LAYER, "part", (op,) * 100)
    return Step(Kind.LAYER, "net", (parts,) * (ops // 100))
