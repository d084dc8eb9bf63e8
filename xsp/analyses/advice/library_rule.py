"""Rules on library calls: a case in, slow implementations and conversions of layouts out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from xsp.analyses.advice.finding import Case, Finding
from xsp.analyses.cell import text_of
from xsp.analyses.structure.by_primitive import by_primitive, is_reference
from xsp.analyses.structure.sums import calls
from xsp.evaluation import Ints
from xsp.level import Kind
from xsp.text import counted, duration, percent

# oneDNN writes the blocked layouts of weights with the first dimension in capitals: ABcd16b16a.
_WEIGHTS = r"dst \S+ A"


def reference_implementations(case: Case) -> Iterator[Finding]:
    """Find library calls for which the library had no optimised implementation."""
    named = case.tree.attribute("implementation").to_frame()
    slow = named.select(is_reference(pl.col("implementation")).fill_null(value=False)).to_series()
    rows = np.flatnonzero(slow.to_numpy())
    if not len(rows):
        return
    time, reach = case.own(rows, Kind.CALL)
    table = by_primitive(case.trace)
    rates = table.filter(~pl.col("reference"))["flops_per_s"].drop_nulls().to_list()
    flops = sum(table.filter("reference")["flops"].drop_nulls().to_list())
    least, rate = (1e9 * flops / max(rates), max(rates)) if rates and flops else (0.0, 0.0)
    at_rate = f"the calls at {rate / 1e9:.3g} GFLOP/s, the best rate of other calls here"
    yield Finding(
        "reference implementation",
        "Change sizes, data types or layouts so that oneDNN has an optimised implementation.",
        f"{_calls(case, rows)} in reference implementations take {duration(time)}, "
        f"{percent(time / case.whole_ns)}, most in "
        f"{case.layers(rows, case.tree.latency_ns()[rows])}",
        time - least,
        reach,
        at_rate if least else "at most: as if the calls took no time",
        "ONEDNN_VERBOSE=dispatch python … says why the others were refused",
    )


def layout_conversions(case: Case) -> Iterator[Finding]:
    """Find conversions between the layouts of a library, of activations and of weights."""
    tree = case.tree
    converts = case.is_of(Kind.CALL) & (tree.spans["name"] == "reorder").to_numpy()
    weights = tree.attribute("formats").str.contains(_WEIGHTS).fill_null(value=False).to_numpy()
    convolves = bool((tree.spans["name"] == "convolution").any())
    activations = np.flatnonzero(converts & ~weights)
    if len(activations):
        advice = (
            "Keep activations in one layout: channels_last for convolutions."
            if convolves
            else "Keep tensors in one layout and data type from call to call."
        )
        verify = (
            "xsp.compare(trace, xsp.measure(model.to(memory_format=torch.channels_last), "
            "x.to(memory_format=torch.channels_last), levels=3))"
            if convolves
            else "xsp analyze FILE by-primitive, after the change"
        )
        yield _conversion(case, activations, "layout conversion", "activations", advice, verify)
    packed = np.flatnonzero(converts & weights)
    if len(packed) and not case.trains:
        yield _conversion(
            case,
            packed,
            "weights packed in each call",
            "weights",
            "Pack the weights once: freeze the model before it is used.",
            "torch.jit.optimize_for_inference(torch.jit.trace(model, x)), measured the same way",
        )


def _conversion(
    case: Case, rows: Ints, rule: str, of_what: str, advice: str, verify: str
) -> Finding:
    time, reach = case.own(rows, Kind.CALL)
    moved = case.tree.attribute("tensor_bytes", pl.Int64)[rows] * pl.Series(calls(case.tree)[rows])
    size = f" and move {text_of('moved_bytes', moved.sum())}" if moved.count() else ""
    return Finding(
        rule,
        advice,
        f"{_calls(case, rows)} reorder {of_what} between layouts; they take {duration(time)}, "
        f"{percent(time / case.whole_ns)},{size}, most in "
        f"{case.layers(rows, case.tree.latency_ns()[rows])}",
        time,
        reach,
        "at most: as if none were needed",
        verify,
    )


def _calls(case: Case, rows: Ints) -> str:
    return counted(int(calls(case.tree)[rows].sum()), "call")
