"""Ranks the findings of all rules in traces by possible gain."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from xsp.answer.analyses.advice.dataflow_rule import operators_at_once
from xsp.answer.analyses.advice.device_rule import (
    host_bound,
    kernels_to_count,
    pageable_copies,
    synchronizations,
)
from xsp.answer.analyses.advice.finding import Case, Finding, named
from xsp.answer.analyses.advice.limit_rule import GENERAL, limit
from xsp.answer.analyses.advice.operator_rule import (
    eager_attention,
    framework_overhead,
    fusible_operators,
    slow_operators,
)
from xsp.answer.analyses.advice.system_rule import (
    interpreter_lock,
    memory_given_back,
    slow_reads,
    waits_for_cpu,
)
from xsp.answer.analyses.cell import text_of
from xsp.answer.analyses.contract import analysis
from xsp.answer.analyses.structure.primitive_latency import is_reference, primitive_latency
from xsp.answer.analyses.structure.sums import calls
from xsp.answer.analyses.system.off_cpu import of_all
from xsp.level import Kind
from xsp.matching import Ints
from xsp.text import counted, duration, percent
from xsp.trace import Trace, self_functions

# Finds waits for data, code between model calls, slow first calls, and surplus threads.

_LOADS = r"(^|of |^first )data loading$|DataLoader"
_FIRST = r"^first call of "
_IMPORTS = r"^import"
_COMPILED_AGAIN = r"^(recompile|retrace)( |$)"
_MUCH_COMPILING = 0.05  # of the trace's latency: less is usual where a program begins
_NAMED = 3  # functions of workers
_TRAINING_STEP = "training step"
# Parts of a training step that are PyTorch's own work.
_WORK = r"^(forward|backward|optimizer step|zero_grad|clip gradients)$"


def data_loading(case: Case) -> Iterator[Finding]:
    """Find programs that wait for data."""
    tree = case.tree
    loads = case.is_of(Kind.REGION, Kind.OP)
    loads = loads & case.is_named(_LOADS)
    rows = np.flatnonzero(loads & (tree.nearest(loads) < 0))
    if not len(rows):
        return
    time, reach = case.latency(rows)
    workers = tree.attribute("workers", pl.Int64)[rows].max()
    if workers == 0:
        advice, told = "Load data in worker processes.", ", and no worker process does it"
    else:
        advice = "Load data faster: more workers, persistent ones, less work for each sample."
        told = f", with {counted(workers, 'worker')}" if isinstance(workers, int) else ""
        together = np.where(np.isin(np.arange(len(loads)), rows), 0, 1)
        ran = self_functions(tree.spans, together, "worker").get(0, ())
        doing = ", ".join(f"{percent(part)} in {function}" for function, part, _ in ran[:_NAMED])
        told += f"; of this time a worker spends {doing}" if doing else ""
    yield Finding(
        "data loading",
        advice,
        f"the program waits {duration(time)} for data, {percent(time / case.whole_ns)}, "
        f"{counted(int(calls(tree)[rows].sum()), 'time')}{told}",
        min(time, case.idle_ns),
        reach,
        "at most: as if data were always ready"
        + (", and no more than devices idle" if case.has_device else ""),
        "DataLoader(…, num_workers=N, persistent_workers=True), profiled the same way",
    )


def program_code(case: Case) -> Iterator[Finding]:
    """Find the functions in which a program spends its time between calls of models."""
    tree = case.tree
    if not tree.attribute("whole_block", pl.Boolean)[0]:
        return
    groups = case.trace.metadata.get("groups", ())
    inference = [group["name"] for group in groups if group.get("phase") != _TRAINING_STEP]
    called = tree.spans["name"].is_in(inference).to_numpy() | case.is_named(_WORK)
    between = case.is_of(Kind.REGION) & ~called & (tree.nearest(called) < 0)
    between = between & ~case.is_named(_LOADS)
    # How long other threads ran something right inside each span, while its own waited.
    thread = tree.spans["thread"].fill_null(-1).to_numpy()
    beside = np.flatnonzero((tree.parent >= 0) & (thread != thread[tree.parent]))
    busy_ns = tree.attribute("busy_ns", pl.Float64).to_numpy()  # of several at once
    time_ns = np.where(np.isnan(busy_ns), tree.latency_ns(), busy_ns)[beside]
    waited_ns = np.bincount(tree.parent[beside], np.nan_to_num(time_ns), len(thread)).astype(
        np.float64
    )
    own_ns = np.maximum(tree.spans["self_ns"].fill_null(0.0).to_numpy() - waited_ns, 0.0)
    functions = self_functions(tree.spans, np.arange(tree.spans.height))
    found = [
        {"name": name, "time": part * own_ns[row], "reach": reach * own_ns[row]}
        for row in np.flatnonzero(between).tolist()
        for name, part, reach in functions.get(row, ())
    ]
    schema = {"name": pl.String, "time": pl.Float64, "reach": pl.Float64}
    frame = pl.DataFrame(found, schema=schema).filter(~pl.col("name").str.contains(_IMPORTS))
    if not frame.height:
        return
    blocked_ns = float(np.nan_to_num(of_all(tree, "blocked_ns")[0]))
    time = min(float(frame["time"].sum()), case.whole_ns - blocked_ns)
    yield Finding(
        "program's own code",
        "Make the program's own code between calls of models quicker.",
        f"functions outside of models take {duration(time)}, {percent(time / case.whole_ns)}: "
        f"{named(frame)}",
        min(time, case.idle_ns),
        float(np.linalg.norm(frame["reach"].to_numpy())),
        "at most: as if these functions took no time",
        "xsp.span around parts of them, profiled the same way",
    )


def first_calls(case: Case) -> Iterator[Finding]:
    """Find what first calls took beyond the later ones."""
    first = case.is_of(Kind.REGION) & case.is_named(_FIRST)
    rows = np.flatnonzero(first)
    if not len(rows):
        return
    time, reach = case.latency(rows)
    yield Finding(
        "first calls",
        "Call each model once before it counts, and keep what was compiled.",
        f"{counted(len(rows), 'first call')} took {duration(time)} longer than later ones, "
        f"{percent(time / case.whole_ns)}",
        time,
        reach,
        "as much as later calls are quicker; in a longer run it is a smaller share",
        "a call with inputs of the same shape before the loop, profiled the same way",
    )


def recompilations(case: Case) -> Iterator[Finding]:
    """Find programs that compile or trace the same code again and again."""
    rows = np.flatnonzero(case.is_of(Kind.REGION) & case.is_named(_COMPILED_AGAIN))
    time, reach = case.latency(rows) if len(rows) else (0.0, None)
    if time < _MUCH_COMPILING * case.whole_ns:
        return
    reasons = case.tree.attribute("recompile_reason")[rows.tolist()].drop_nulls()
    often = round(float(calls(case.tree)[rows].sum()))
    known = [str(reason) for reason in reasons.unique(maintain_order=True)[:_NAMED]]
    yield Finding(
        "recompilations",
        "Give compiled functions inputs of fixed shapes and types (pad batches), or let sizes "
        "vary: `dynamic=True` of torch.compile, `input_signature` of tf.function.",
        f"{counted(often, 'recompilation')} took {duration(time)}, "
        f"{percent(time / case.whole_ns)}" + (f": {'; '.join(known)}" if known else ""),
        time,
        reach,
        "at most: as if nothing had been compiled again",
        "the same run with inputs of one shape, profiled the same way",
    )


def fighting_threads(case: Case) -> Iterator[Finding]:
    """Find operators that use more threads than the process has cores."""
    environment = case.trace.metadata.get("environment") or {}
    cores, threads = environment.get("usable_cores"), environment.get("threads") or {}
    each = threads.get("operators") if isinstance(threads, Mapping) else None
    if not cores or not each:
        return
    # How many outermost operators ran at once on average, while any did.
    tree = case.tree
    operators = case.is_of(Kind.OP) & tree.spans["device"].is_null().to_numpy()
    outermost = np.flatnonzero(operators & (case.above(Kind.OP) < 0))
    spans = tree.spans.select("start_ns", "end_ns", "thread")[outermost]
    if spans["thread"].n_unique() <= 1:
        at_once = 1.0
    else:
        ended = pl.col("end_ns").cum_max().shift(1, fill_value=0)
        parts = spans.sort("start_ns").select(
            length=pl.col("end_ns") - pl.col("start_ns"),
            new=(pl.col("end_ns") - pl.max_horizontal("start_ns", ended)).clip(lower_bound=0),
        )
        at_once = int(parts["length"].sum()) / max(int(parts["new"].sum()), 1)
    used = each * at_once
    if used <= 1.2 * cores:  # a thread that waits now and then is no fight
        return
    kind = Kind.CALL if case.is_of(Kind.CALL).any() else Kind.OP
    time, reach = case.own(case.rows(kind), kind)
    several = f", {at_once:.1f} operators at once on average" if at_once > 1 else ""
    yield Finding(
        "threads that fight",
        "Use no more threads than there are cores.",
        f"operators use {counted(each, 'thread')} each{several}, on {cores:g} cores; "
        f"what they compute takes {duration(time)}, {percent(time / case.whole_ns)}",
        time * (1 - cores / used),
        reach,
        "at most: as if threads beyond the cores only did harm",
        f"xsp sweep TARGET --threads {max(int(cores / at_once), 1)},{each}",
    )


# Finds library calls without an optimized implementation, and conversions of layouts.

# oneDNN writes the blocked layouts of weights with the first dimension in capitals: ABcd16b16a.
_WEIGHTS = r"dst \S+ A"


def reference_implementations(case: Case) -> Iterator[Finding]:
    """Find library calls for which the library had no optimized implementation."""
    named = case.tree.attribute("implementation").to_frame()
    slow = named.select(is_reference(pl.col("implementation")).fill_null(value=False)).to_series()
    rows = np.flatnonzero(slow.to_numpy())
    if not len(rows):
        return
    time, reach = case.own(rows, Kind.CALL)
    table = primitive_latency(case.trace)
    rates = table.filter(~pl.col("reference"))["flops_per_s"].drop_nulls().to_list()
    flops = sum(table.filter("reference")["flops"].drop_nulls().to_list())
    least, rate = (1e9 * flops / max(rates), max(rates)) if rates and flops else (0.0, 0.0)
    at_rate = f"the calls at {rate / 1e9:.3g} GFLOP/s, the best rate of other calls here"
    yield Finding(
        "reference implementation",
        "Change sizes, data types or layouts so that oneDNN has an optimized implementation.",
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
            else "xsp analyze FILE primitive-latency, after the change"
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


_COLUMNS = {
    "trace": "Name of the trace.",
    "rule": "What was found.",
    "advice": "What to do about that.",
    "gain_ns": "Size of the possible gain. Gains overlap: they do not add up.",
    "gain_low_ns": "Lower end of its interval; null where the times have none, as in recordings.",
    "gain_high_ns": "Upper end of its interval.",
    "gain_pct": "That as a share of the trace's latency.",
    "estimate": "How the gain was estimated.",
    "evidence": "The numbers that say so.",
    "verify": "A command, or code, that shows whether it is so.",
}
_NUMBERS = ("gain_ns", "gain_low_ns", "gain_high_ns", "gain_pct")
_TYPES = {name: pl.Float64 if name in _NUMBERS else pl.String for name in _COLUMNS}

RULES: tuple[Callable[[Case], Iterator[Finding]], ...] = (
    reference_implementations,
    layout_conversions,
    fusible_operators,
    slow_operators,
    framework_overhead,
    eager_attention,
    host_bound,
    pageable_copies,
    synchronizations,
    kernels_to_count,
    data_loading,
    program_code,
    first_calls,
    recompilations,
    fighting_threads,
    waits_for_cpu,
    interpreter_lock,
    slow_reads,
    memory_given_back,
    operators_at_once,
)


@analysis("What should I look at next?", _COLUMNS, several=True)
def advice(*traces: Trace) -> pl.DataFrame:
    """Return the findings of rules in traces, those with the largest possible gain first.

    A finding is told where its gain is 1 % of the trace's latency or more, and more than its
    interval allows to be noise.

    Args:
        traces: Any traces; of one model at several batch sizes, batches are compared.
    """
    # Of no latency there is no share, and nothing to gain.
    filled = [trace for trace in traces if trace.spans.height]
    cases = [case for trace in filled if (case := Case(trace)).whole_ns > 0]
    found = [(case, finding) for case in cases for finding in _findings(case)]
    found += batch_sizes(cases)
    rows = [_row(case, finding) for case, finding in found if finding.is_worth(case.whole_ns)]
    table = pl.DataFrame(rows, schema=_TYPES)
    return table.sort("gain_pct", descending=True, maintain_order=True).select(*_COLUMNS)


def _findings(case: Case) -> list[Finding]:
    """List what the rules find, and what agrees with the verdict if none of that does."""
    found = [finding for rule in RULES for finding in rule(case)]
    agreeing = limit(case, found)
    return found if agreeing is None else [*found, agreeing]


def look_next(trace: Trace) -> list[tuple[str, str]]:
    """Word the three findings with the largest gain, each with the command that checks it.

    Raises:
        AnalysisError: The trace has too little for advice.
    """
    columns = ("advice", "gain_ns", "gain_pct", "verify")
    found = advice(trace).filter(~pl.col("rule").is_in(GENERAL)).head(3)
    return [
        (f"{said} Gains at most {duration(gain_ns)}, {gain_pct:.0f} %.", check.split("; ")[0])
        for said, gain_ns, gain_pct, check in found.select(*columns).iter_rows()
    ]


def _row(case: Case, finding: Finding) -> dict[str, str | float | None]:
    # What runs on several streams or threads at once may take longer than the trace.
    gain, error = min(finding.gain_ns, case.whole_ns), finding.error_ns
    return {
        "trace": case.trace.name,
        "rule": finding.rule,
        "advice": finding.advice,
        "gain_ns": gain,
        "gain_low_ns": None if error is None else gain - error,
        "gain_high_ns": None if error is None else gain + error,
        "gain_pct": 100 * gain / case.whole_ns,
        "estimate": finding.estimate,
        "evidence": finding.evidence,
        "verify": finding.verify,
    }


# Finds traces of a model whose batch is slower, per input, than the batch of another trace.


@dataclass(frozen=True, slots=True)
class _Batch:
    """A case, the model in it, and how many inputs that takes at once."""

    case: Case
    model: tuple[str | None, int, tuple[int, ...]]
    size: int

    @property
    def input_ns(self) -> float:
        """Latency per input."""
        return self.case.whole_ns / self.size

    @property
    def reach_ns(self) -> float | None:
        """How far the interval of the latency reaches; None for unknown."""
        return self.case.latency(np.array([0]))[1]


def batch_sizes(cases: Sequence[Case]) -> Iterator[tuple[Case, Finding]]:
    """Find traces of a model whose batch is slower, per input, than that of another trace.

    Models are the same where class, number of layers and the rest of the input's shape are.
    """
    batches = [batch for case in cases if (batch := _batch(case)) is not None]
    for batch in batches:
        rivals = [other for other in batches if other.model == batch.model]
        best = min(rivals, key=lambda other: other.input_ns)
        # What is not known to be more than noise is no reason to change the batch.
        if best.size != batch.size and batch.reach_ns is not None and best.reach_ns is not None:
            error = batch.reach_ns + best.reach_ns * batch.size / best.size
            sizes = sorted((batch.size, best.size))
            slower = Finding(
                "batch size",
                f"Use batches of {best.size}, where the latency of one allows that.",
                f"{duration(batch.input_ns)} per input in batches of {batch.size}, "
                f"{duration(best.input_ns)} in batches of {best.size}: "
                f"{percent(batch.input_ns / best.input_ns - 1)} more",
                batch.case.whole_ns - batch.size * best.input_ns,
                error,
                f"{batch.size} inputs, each as quick as in batches of {best.size}",
                f"xsp sweep TARGET --batch {sizes[0]},{sizes[1]}",
            )
            yield batch.case, slower


def _batch(case: Case) -> _Batch | None:
    """Return the batch of a trace of one model, None where there is none."""
    tree = case.tree
    layers = case.rows(Kind.LAYER)
    shapes = tree.attribute("input_shapes", pl.List(pl.List(pl.Int64)))
    if not len(layers) or tree.attribute("whole_block", pl.Boolean)[0]:
        return None
    first = shapes[int(layers[0])]
    if first is None or not len(first) or first[0] is None or not len(first[0]):
        return None
    size, *rest = first[0].to_list() if isinstance(first[0], pl.Series) else first[0]
    if not size or not case.whole_ns:
        return None
    kind = tree.attribute("module_class")[int(layers[0])]
    return _Batch(case, (kind, len(layers), tuple(rest)), int(size))
