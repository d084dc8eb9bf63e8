"""Headings: spans and metadata of a trace in, the headline and the lines of problems out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from xsp.evaluation import ON_DEVICE
from xsp.inexact import Inexact
from xsp.level import MEASURED
from xsp.problem import NOTE
from xsp.text import counted, duration, estimate, margin, percent, printable
from xsp.trace.attribute import attribute_column, inexact_column
from xsp.trace.coverage import Coverage, attribution, coverage, outside_calls
from xsp.trace.row import SUMS, Outline

DOT = " · "  # between parts of the headline

_IMPOSSIBLE_PCT = 105.0
_TELLING_PCT = 50.0  # calls of other tools' recordings that mostly lie elsewhere are no libraries'
_LEAST_SHARE, _MOST_NAMES = 0.01, 3  # of operators named for time outside of library calls

_WORDS = {
    "pipeline": "model",
    "layer": "layers",
    "op": "operators",
    "call": "library calls",
    "launch": "launches",
    "kernel": "kernels",
    "memcpy": "copies",
    "memset": "sets",
    "sync": "synchronisations",
    "syscall": "system calls",
}


def headline(spans: pl.DataFrame, metadata: Mapping[str, Any]) -> str:
    """Return the first line: name and latency of the model, and how far the numbers go."""
    return DOT.join(headline_parts(spans, metadata))


def headline_parts(spans: pl.DataFrame, metadata: Mapping[str, Any]) -> list[str]:
    """Return the parts of the headline: name and latency, and a claim each."""
    latency = model_latency(spans)
    has_interval = spans.height and spans["latency_low_ns"][0] is not None
    if has_interval and "intervals" in metadata:
        latency += f" {printable(str(metadata['intervals']))}"
    return [f"{title(metadata)}  {latency}", *_claims(spans, metadata)]


def title(metadata: Mapping[str, Any]) -> str:
    """Return the printable name of the model or function that was measured."""
    return printable(str(metadata.get("name") or "trace"))


def model_latency(spans: pl.DataFrame) -> str:
    """Return the root's latency with its 95 % interval's half width."""
    if not spans.height:
        return "no spans"
    latency, low, high = spans.select("latency_ns", "latency_low_ns", "latency_high_ns").row(0)
    value, plus_minus, unit = estimate(latency, margin(latency, low, high))
    return f"{value} ± {plus_minus} {unit}" if plus_minus else f"{value} {unit}".rstrip()


def summary_lines(metadata: Mapping[str, Any]) -> list[str]:
    """Return what was evaluated in a program, and what lies outside, as printable lines."""
    return [printable(str(line)) for line in metadata.get("summary", ())]


def said_of_all(metadata: Mapping[str, Any]) -> frozenset[Inexact]:
    """Return the reasons why latencies are not exact that the headline says of the whole trace.

    Of another tool's recording it says that overhead is left, and how often all was seen.
    """
    return frozenset((Inexact.CARRIED, Inexact.FEW)) if metadata.get("imported") else frozenset()


def made_of(spans: pl.DataFrame) -> dict[str, Any]:
    """Return what a trace says once of layers that are all made of operators; else nothing.

    Where only some layers are, as in a backward pass, each of these says so itself (`inexact`).
    """
    layers = spans.filter(pl.col("kind") == "layer", ~ON_DEVICE)
    if not layers.height or not (inexact_column(layers) & Inexact.DERIVED.bit).all():
        return {}
    return {"made_of": {"layer": "op"}}


def footer_lines(metadata: Mapping[str, Any]) -> list[str]:
    """Return what is said of all spans of a kind, as printable lines below the tree."""
    return [
        f"{_WORDS.get(kind, kind)} are made of their {_WORDS.get(inner, inner)}: each lasts from "
        "the start of the first to the end of the last, less what recording these cost"
        for kind, inner in metadata.get("made_of", {}).items()
    ] + [
        printable(str(problem["message"]))
        for problem in metadata.get("problems", ())
        if problem["code"] == NOTE
    ]


def unmarked(drawn: Outline, metadata: Mapping[str, Any]) -> Outline:
    """Return the outline without the reasons that the headline or the footer says of all."""
    drawn = drawn.without(said_of_all(metadata))
    kinds = _made_of_others(metadata)
    return drawn.without({Inexact.DERIVED}, {*kinds, *SUMS}) if kinds else drawn


def _made_of_others(metadata: Mapping[str, Any]) -> frozenset[str]:
    """Return the kinds of which no span need say that it is made of others.

    Where all layers are, so are parts of the graph beside its layers: reading parameters, say.
    """
    kinds = metadata.get("made_of", {})
    return frozenset((*kinds, "pipeline")) if kinds else frozenset()


def problem_lines(metadata: Mapping[str, Any]) -> list[str]:
    """Return the trace's problems as printable lines: code, colon and sentence."""
    return [
        f"{printable(str(problem['code']))}: {printable(str(problem['message']))}"
        for problem in metadata.get("problems", ())
        if problem["code"] != NOTE
    ]


def folded_problem_lines(metadata: Mapping[str, Any]) -> list[str]:
    """Return `problem_lines`, of which those of one code that several groups have are one line.

    That is the first of them, which is of the group that took most time, and their number.
    """
    groups = tuple(f"{printable(str(group['name']))}: " for group in metadata.get("groups", ()))
    alike: dict[str, list[str]] = {}
    for line in problem_lines(metadata):
        code, _, message = line.partition(": ")
        alike.setdefault(code if message.startswith(groups) else line, []).append(line)
    return [
        first + (f" ({len(others)} more of this kind in trace.problems)" if others else "")
        for first, *others in alike.values()
    ]


def _claims(spans: pl.DataFrame, metadata: Mapping[str, Any]) -> Iterator[str]:
    """Yield the parts of the headline after the latency."""
    yield from _exact(spans, metadata)
    host = spans.filter(~ON_DEVICE)  # without operators that a CUDA graph replays
    covered, imported = coverage(host), bool(metadata.get("imported"))
    if covered and not (imported and covered.under_operator_pct < _TELLING_PCT):
        yield f"library calls: {_in_calls(host, covered)}{_outside_operators(covered)}"
    devices = _devices(spans, marks=imported)
    yield from filter(None, (devices, _serialised(spans, metadata)))
    if missing := _missing(metadata):
        yield f"not measured: {', '.join(missing)}"


def _exact(spans: pl.DataFrame, metadata: Mapping[str, Any]) -> Iterator[str]:
    """Yield which latencies are exact, and why others are not."""
    kinds = _exactness(spans)
    parts = _parts_of_time(spans, metadata.get("groups", ()))
    if imported := metadata.get("imported"):
        yield from _recorded(spans, imported)
    elif carried := parts.get(Inexact.CARRIED):
        yield f"without overhead: all but {percent(carried)} of the time{_runs(spans)}"
    else:
        yield from _without_overhead(spans, kinds)
    said, made = said_of_all(metadata), _made_of_others(metadata)
    kinds = {
        name: row | {Inexact.DERIVED: 0} if name in made else row for name, row in kinds.items()
    }
    for reason in Inexact:
        if reason in said or (reason is Inexact.CARRIED and reason in parts):
            continue
        if reason in parts:
            yield f"{reason.words}: {percent(parts[reason])} of the time"
        elif affected := _affected(kinds, reason):
            yield f"{reason.words}: {affected}"


def _recorded(spans: pl.DataFrame, imported: Mapping[str, Any]) -> Iterator[str]:
    """Yield which tool recorded a trace, and what that means for its latencies."""
    tool = printable(str(imported.get("tool") or "another tool"))
    own = "; times on devices are their own" if spans["device"].is_not_null().any() else ""
    yield f"recorded by {tool}, whose overhead is in it and cannot be removed{own}"


def _without_overhead(spans: pl.DataFrame, kinds: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    # A kind is without overhead if all of its known latencies say so.
    without = [_WORDS.get(kind, kind) for kind, row in kinds.items() if row["free"] == row["known"]]
    if without:
        yield f"without overhead: {', '.join(without)}{_runs(spans)}"


def _in_calls(spans: pl.DataFrame, covered: Coverage) -> str:
    """Return the share of the operators' time in library calls, and where the rest is spent.

    Both come from one table, so that the share and the rest make 100 %: a call that seems longer
    than its operator, by its error, makes up for no time elsewhere.
    """
    if covered.in_calls_pct > _IMPOSSIBLE_PCT:  # calls and operators come from different runs
        return "longer than the operators around them, so these are not known well enough to tell"
    by_name = outside_calls(spans)
    parts = by_name["rest_ns"] / (by_name["own_ns"].sum() or 1)
    inside = 100 - 100 * float(parts.sum())
    return f"{max(inside, 0.0):.0f} % of the operators' time{_rest(by_name['name'], parts)}"


def _rest(names: pl.Series, parts: pl.Series) -> str:
    """Return the operators with most of the time outside of library calls."""
    operators = [
        f"{printable(name.removeprefix('aten::'))} {percent(part)}"
        for name, part in zip(names, parts, strict=True)
        if part >= _LEAST_SHARE
    ]
    return f" (most of the rest: {', '.join(operators[:_MOST_NAMES])})" if operators else ""


def _outside_operators(covered: Coverage) -> str:
    if round(covered.under_operator_pct, 1) >= 100:
        return ""
    return f", {100 - covered.under_operator_pct:.1f} % of theirs lies under no operator"


def _devices(spans: pl.DataFrame, *, marks: bool) -> str:
    """Return how long devices worked, and for what: the shares under layers, operators, marks."""
    work = attribution(spans, marks=marks)
    if work is None:
        return ""
    shares = {"a layer": work.layer, "an operator": work.operator, "a marked span": work.mark}
    parts = [
        f"{percent(share)} under {span}" for span, share in shares.items() if share is not None
    ]
    parts.append(f"{percent(work.nowhere)} unattributed")
    return f"device: {duration(spans['device_ns'][0])}, of its work {', '.join(parts)}"


def _serialised(spans: pl.DataFrame, metadata: Mapping[str, Any]) -> str:
    """Return the model's latency in serialised runs; empty if there were none."""
    rungs = metadata.get("rungs", ())
    latency = next(
        (rung.get("latency_ns") for rung in rungs if rung.get("rung") == "serialised"), None
    )
    if latency is None or not spans.height:
        return ""
    constraint = "one thread" if spans["device_ns"][0] is None else "each kernel waited for"
    return f"with {constraint}: {duration(latency)}"


def _exactness(spans: pl.DataFrame) -> dict[str, dict[str, int]]:
    """Return for each kind how many latencies are known, free of overhead, and inexact, by reason.

    A latency is only free of overhead if the trace says so: some traces do not tell.
    """
    # Spans that a CUDA graph replays were never observed themselves.
    spans = spans.filter(~attribute_column(spans, "replayed", pl.Boolean).fill_null(value=False))
    told = attribute_column(spans, "exact", pl.Boolean).is_not_null()
    codes = inexact_column(spans)
    applies = {reason.value: pl.Series((codes & reason.bit) > 0) for reason in Inexact}
    counts = (
        spans.select("kind", "latency_ns")
        .with_columns(**applies, known=1, free=told & ~applies[Inexact.CARRIED])
        .filter(pl.col("latency_ns").is_not_null())
        .group_by("kind", maintain_order=True)
        .agg(pl.col("known", "free", *applies).sum())
    )
    rows = {row["kind"]: row for row in counts.iter_rows(named=True)}
    return {kind: rows[kind] for kind in sorted(rows, key=[*_WORDS, *rows].index)}


def _affected(kinds: Mapping[str, Mapping[str, int]], reason: Inexact) -> str:
    """Return the kinds of latency that are not exact for a reason; empty where all are."""
    parts = [
        _share_of(kind, row[reason], row["known"]) for kind, row in kinds.items() if row[reason]
    ]
    everywhere = all(row[reason] == row["known"] for row in kinds.values())
    return "all" if parts and everywhere else ", ".join(parts)


def _parts_of_time(
    spans: pl.DataFrame, groups: Sequence[Mapping[str, Any]]
) -> dict[Inexact, float]:
    """Return for each reason how much of a program's time on the host is not exact for it.

    What lies around groups of evaluations is not exact for their reasons; its own time is. Reasons
    that hold for no time are left out, and spans made of others: their time is that of these.
    """
    if not groups:
        return {}
    spans = spans.filter(~ON_DEVICE)
    spans = spans.filter(~attribute_column(spans, "replayed", pl.Boolean).fill_null(value=False))
    around = attribute_column(spans, "program_part", pl.Boolean).fill_null(value=False)
    inside = (~around | spans["name"].is_in([group["name"] for group in groups])).to_numpy()
    own_ns, codes = spans["self_ns"].fill_null(0.0).to_numpy(), inexact_column(spans)
    parts = {
        reason: float(own_ns[inside & (codes & reason.bit > 0)].sum() / max(own_ns.sum(), 1.0))
        for reason in Inexact
        if reason is not Inexact.DERIVED
    }
    return {reason: part for reason, part in parts.items() if part > 0}


def _runs(spans: pl.DataFrame) -> str:
    fewest, most = spans.select(
        pl.col("runs").min().alias("fewest"), pl.col("runs").max().alias("most")
    ).row(0)
    if not most:
        return ""
    return f" ({counted(most, 'run')})" if fewest == most else f" ({fewest} to {most} runs)"


def _share_of(kind: str, part: int, whole: int) -> str:
    word = _WORDS.get(kind, kind)
    if part == whole:
        return word
    # Only one of these is the model: the others are steps and parts around it.
    return f"{part:,} of {whole:,} {'pipeline spans' if kind == 'pipeline' else word}"


def _missing(metadata: Mapping[str, Any]) -> list[str]:
    """Return the levels that were asked for but left out; a problem says why."""
    levels = metadata.get("levels", {})
    return [printable(str(level)) for level, state in levels.items() if state != MEASURED]
