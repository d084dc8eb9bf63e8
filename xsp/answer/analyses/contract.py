"""Defines an analysis, a function that makes one documented table of traces or raises an error.

An analysis is a function that `analysis` decorates with the question it answers, what it needs of
a trace, and what its columns mean. Every value of a table stands in a column that is documented,
and that bears its unit in its name (`latency_ns`, `read_bytes`, `share_pct`).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Generic, ParamSpec

import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars import selectors

from xsp.delivery import bound
from xsp.errors import AnalysisError
from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.trace import Trace, attribute_column

P = ParamSpec("P")


class Need(Enum):
    """A need of an analysis, with the remedy for a trace that does not meet the need.

    The value is a pair: the need in words, and what to do.
    """

    LAYERS = ("layers", "measure with levels=2 or more, in a framework whose layers xsp sees")
    OPERATORS = ("operators", "measure with levels=2 or more")
    CALLS = ("library calls", "measure with levels=3 or more, where xsp doctor lists a library")
    DEVICE = ("work of a device", "measure with levels=4 on a GPU, or read a recording of one")
    COMMUNICATION = (
        "work of a device, nor collectives of several ranks",
        "measure with levels=4 on a GPU, read a recording of one, or profile all ranks: "
        "torchrun --nproc-per-node 2 -m xsp profile script.py",
    )
    LAUNCHES = ("launches", "measure with levels=4 on a GPU, or read a recording of one")
    RANKS = (
        "spans of several ranks",
        "read the recordings of all of them: xsp import rank*.json.gz",
    )
    STATES = (
        "states of threads",
        "measure with levels=5 on Linux; xsp doctor says what may be watched here",
    )
    COUNTERS = (
        "counters of the processor",
        "measure with levels=5 on a machine with hardware counters (see xsp doctor --verbose)",
    )
    FAULTS = (
        "page faults",
        "measure with levels=5 on Linux; xsp doctor says what may be watched here",
    )
    SYSTEM_CALLS = (
        "system calls",
        "measure with levels=5 on Linux; xsp doctor says what lets the kernel tell them",
    )
    INPUTS = (
        "known inputs of operators",
        "measure one call of a graph of ONNX Runtime, TensorFlow or JAX with levels=2 or more; "
        "no operator of eager PyTorch waits for a thread",
    )
    UTILIZATION = (
        "utilization of a GPU",
        "measure with levels=1 or more where `xsp doctor` lists a GPU",
    )
    ENERGY = ("energy", "measure with energy=True where `xsp doctor` lists a GPU or CPU energy")
    HOST = ("readings of the host", "measure with monitor=True on Linux")
    MEMORY = ("allocations", "measure with levels=2 or more: operators record what they allocate")

    @property
    def words(self) -> str:
        """The need in words."""
        return self.value[0]

    def unmet(self, trace: Trace) -> str | None:
        """Return why a trace does not meet the need and what to do, None where it does."""
        if _MET[self](trace.spans):
            return None
        remedy = self.value[1]
        metrics = _READINGS.get(self, ())
        told = metrics and "few-readings" in {warning.code for warning in trace.warnings}
        if told or trace.readings["metric"].is_in(metrics).any():
            remedy = "readings cover too little of it; measure again for longer, see its warnings"
        return f"the trace {trace.name} has no {self.value[0]}: {remedy}"


def _has(*kinds: Kind) -> Callable[[pl.DataFrame], bool]:
    return lambda spans: bool(spans["kind"].is_in([kind.value for kind in kinds]).any())


def _ranks(spans: pl.DataFrame) -> bool:
    return attribute_column(spans, "process", pl.Int64).n_unique() > 2  # null is one of them


def _collectives(spans: pl.DataFrame) -> bool:
    return bool(attribute_column(spans, "collective", pl.String).count())


def _allocations(spans: pl.DataFrame) -> bool:
    framework = spans["kind"].is_in([Kind.LAYER.value, Kind.OP.value])
    return bool(attribute_column(spans, "allocated_bytes", pl.Int64).filter(framework).count())


def _knows(name: str) -> Callable[[pl.DataFrame], bool]:
    return lambda spans: bool(attribute_column(spans, name, pl.Float64).count())


def graph_operators(spans: pl.DataFrame) -> NDArray[np.bool_]:
    """Return which spans are one run each of an operator that a graph has a name for."""
    names = [attribute_column(spans, name, pl.String) for name in ("node", "hlo_op")]
    single = attribute_column(spans, "calls", pl.Int64).fill_null(1) == 1
    of_host = (spans["kind"] == Kind.OP.value) & spans["device"].is_null()
    found: NDArray[np.bool_] = (
        of_host & single & (names[0].is_not_null() | names[1].is_not_null())
    ).to_numpy()
    return found


def _inputs(spans: pl.DataFrame) -> bool:
    known = attribute_column(spans, "inputs", pl.List(pl.String)).is_not_null()
    return bool((known & pl.Series(graph_operators(spans))).any())


# Metrics whose readings make what is needed, if there are enough of them.
_READINGS: Mapping[Need, tuple[str, ...]] = {
    Need.UTILIZATION: ("gpu_busy_pct", "sm_active_pct"),
    Need.ENERGY: ("energy_j", "power_w", "processor_energy_j"),
    Need.HOST: ("process_s",),
}

_MET: Mapping[Need, Callable[[pl.DataFrame], bool]] = {
    Need.LAYERS: _has(Kind.LAYER),
    Need.OPERATORS: _has(Kind.OP),
    Need.CALLS: _has(Kind.CALL),
    Need.DEVICE: _has(*DEVICE_ACTIVITIES),
    Need.COMMUNICATION: lambda spans: _has(*DEVICE_ACTIVITIES)(spans) or _collectives(spans),
    Need.LAUNCHES: _has(Kind.LAUNCH),
    Need.RANKS: _ranks,
    Need.STATES: _knows("running_ns"),
    Need.COUNTERS: _knows("cycles"),
    Need.FAULTS: _knows("page_faults"),
    Need.SYSTEM_CALLS: _has(Kind.SYSCALL),
    Need.INPUTS: _inputs,
    Need.UTILIZATION: lambda spans: any(
        _knows(name)(spans) for name in ("gpu_busy_pct", "sm_active_pct")
    ),
    Need.ENERGY: _knows("energy_j"),
    Need.HOST: _knows("cpu_pct"),
    Need.MEMORY: _allocations,
}


class Analysis(Generic[P]):
    """A function from traces to a table, with what a reader has to know of both.

    Attributes:
        name: Name on the command line, such as `layer-latency`.
        question: The question that the table answers.
        columns: What each column of the table means, in the table's order.
        needs: What the trace must have.
        paper: Number of the analysis in the paper XSP (arXiv 1908.06869), such as `A3`.
        several: Whether several traces go in at once.
    """

    def __init__(
        self,
        function: Callable[P, pl.DataFrame],
        question: str,
        columns: Mapping[str, str],
        *,
        needs: tuple[Need, ...] = (),
        paper: str | None = None,
        several: bool = False,
    ) -> None:
        functools.update_wrapper(self, function)
        self.name = function.__name__.replace("_", "-")
        self.question = question
        self.columns = columns
        self.needs = needs
        self.paper = paper
        self.several = several
        self._function = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> pl.DataFrame:
        """Return the table of one trace, or of several.

        Raises:
            AnalysisError: A trace lacks what the analysis needs; the message says what to do.
            TypeError: A path stands where a trace is to be.
        """
        traces = args if self.several else args[:1]
        for path in traces:
            if isinstance(path, (str, os.PathLike)):
                named = os.fspath(path)
                raise TypeError(
                    f"{self.name.replace('-', '_')}() needs a Trace, got a path. "
                    f"Use xsp.load({named!r})."
                )
        for trace in args:
            if isinstance(trace, Trace) and (why := self.unmet(trace)):
                raise AnalysisError(f"{self.name}: {why}")
        table = self._function(*args, **kwargs)
        assert table.columns == list(self.columns), (self.name, table.columns)
        # Parts of what took no time, and rates in it, are not known.
        return table.with_columns(pl.when(selectors.float().is_finite()).then(selectors.float()))

    def plot(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Draw the table of one trace, or of several: `xsp.analyses.layer_latency.plot(trace)`.

        Returns:
            An `xsp.plot.Plot`, which shows itself in notebooks and has `save("layers.html")`.

        Raises:
            AnalysisError: A trace lacks what the analysis needs, or the table has no picture.
        """
        picture = bound("picture")(self)
        if picture is None:
            raise AnalysisError(f"{self.name} has no picture. Use its table.")
        return picture(*args, **kwargs)

    def unmet(self, trace: Trace) -> str | None:
        """Return the first need that a trace does not meet, with a remedy; None if all are met."""
        return next((why for need in self.needs if (why := need.unmet(trace))), None)

    def __repr__(self) -> str:
        return f"<analysis {self.name}: {self.question}>"


def analysis(
    question: str,
    columns: Mapping[str, str],
    *,
    needs: tuple[Need, ...] = (),
    paper: str | None = None,
    several: bool = False,
) -> Callable[[Callable[P, pl.DataFrame]], Analysis[P]]:
    """Return the decorator that makes an `Analysis` of a function; see there for the arguments."""

    def decorate(function: Callable[P, pl.DataFrame]) -> Analysis[P]:
        return Analysis(function, question, columns, needs=needs, paper=paper, several=several)

    return decorate
