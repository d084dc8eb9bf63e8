"""Writes the headline, the summary, the footer and the warnings of a trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from xsp.inexact import Inexact
from xsp.level import MEASURED
from xsp.matching import ON_DEVICE
from xsp.text import counted, duration, estimate, margin, percent, printable
from xsp.trace.attribute import attribute_column, inexact_column
from xsp.trace.coverage import attribution, coverage, outside_calls
from xsp.trace.row import SUMS, Outline
from xsp.warning import NOISE, NOTE, gravity

DOT = " · "  # between parts of the headline

_PROGRAM = "block"  # the root of a program's trace
# The line of a summary that names the groups, and as earlier versions wrote it.
_CALLED = ("called: ", "evaluated: ")
_MOST_GROUPS = 4  # named above the tree
_MOST_WARNINGS = 3  # above the tree
_ROUGH = 0.25  # a relative error from which on times are rough
_IMPOSSIBLE_PCT = 105.0
_TELLING_PCT = 50.0  # calls of other tools' recordings that mostly lie elsewhere are no libraries'
_LEAST_NOWHERE = 0.0005  # of the devices' work: less is 0.0 %
_LEAST_SHARE, _MOST_NAMES = 0.01, 3  # of operators named for time outside of library calls

_WORDS = {
    "region": "model",
    "layer": "layers",
    "op": "operators",
    "call": "library calls",
    "launch": "launches",
    "kernel": "kernels",
    "memcpy": "copies",
    "memset": "sets",
    "sync": "synchronizations",
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


def top_lines(
    spans: pl.DataFrame, metadata: Mapping[str, Any], *, errors: bool = False
) -> list[list[str]]:
    """Return the lines above a tree, each in parts: what ran, how long, and what is removed.

    Args:
        spans: Frame with the columns of `trace.spans`.
        metadata: `trace.metadata`.
        errors: Whether to say also which latencies are not exact, and why.
    """
    if errors or not spans.height:
        return [headline_parts(spans, metadata), *([line] for line in summary_lines(metadata))]
    latency, low, high = spans.select("latency_ns", "latency_low_ns", "latency_high_ns").row(0)
    groups = metadata.get("groups", ())
    if len(groups) == 1:
        [group] = groups
        noun = "training step" if group["phase"] == "training step" else "step"
        about = _about(*(group.get(f"latency{end}_ns") for end in ("", "_low", "_high")))
        first = [
            f"{counted(group['calls'], noun)} of {printable(str(group['name']))}",
            f"{duration(group['latency_ns'])} each{about}",
        ]
        if noun != "step":  # the name repeats it
            first[0] = counted(group["calls"], noun)
    else:
        first = [duration(latency) + _about(latency, low, high)]
    imported = metadata.get("imported")
    lines = [[title(metadata), *first]]
    if groups or attribute_column(spans, "whole_block", pl.Boolean)[0]:
        lines.append([_removed(spans, metadata, of_program=True)])
    elif not imported:
        lines[0].append(_removed(spans, metadata))
    elif "intervals" in metadata:
        lines[0][-1] += f" {printable(str(metadata['intervals']))}"
    if len(groups) > 1:
        parts = [
            f"{group['calls']:,} \u00d7 {printable(str(group['name']))} "
            f"({duration(group['latency_ns'])} each)"
            for group in groups[:_MOST_GROUPS]
        ]
        more = len(groups) - _MOST_GROUPS
        lines.append(parts + ([f"{more:,} more"] if more > 0 else []))
    lines += [
        [line] for line in summary_lines(metadata) if not (groups and line.startswith(_CALLED))
    ]
    if imported:
        tool = printable(str(imported.get("tool") or "another tool"))
        own = ", except in times on devices" if spans["device"].is_not_null().any() else ""
        if tool.startswith("xsp "):  # with overhead or without, which the export does not tell
            lines.append([f"exported by {tool}"])
        else:
            lines.append([f"recorded by {tool}; its overhead is included{own}"])
    lines += [[line] for line in _work(spans, metadata)]
    return [[part for part in line if part] for line in lines if any(line)]


def noise(spans: pl.DataFrame) -> str:
    """Return a line that says how rough the times are; empty where the worst are good enough.

    That is the median of the relative error of a kind of span on the host, weighted by time.

    Args:
        spans: Frame with the columns of `trace.spans`.
    """
    half = pl.max_horizontal(
        pl.col("latency_high_ns") - pl.col("latency_ns"),
        pl.col("latency_ns") - pl.col("latency_low_ns"),
    )
    known = (
        spans.filter(~ON_DEVICE, pl.col("latency_ns") > 0)
        .select("kind", "latency_ns", error=half / pl.col("latency_ns"))
        .filter(pl.col("error").is_not_null(), pl.col("error").is_not_nan())
        .sort("error")
        .with_columns(
            place=pl.col("latency_ns").cum_sum().over("kind"),
            whole=pl.col("latency_ns").sum().over("kind"),
        )
        .filter(pl.col("place") >= pl.col("whole") / 2)
        .group_by("kind")
        .agg(pl.col("error").first())
        .filter(pl.col("error") >= _ROUGH)
    )
    errors = dict(known.iter_rows())
    if not errors:
        return ""
    if "region" in errors:
        return f"noisy: times are rough (about {_percent_of(errors['region'])}); see xsp doctor"
    kinds = " and ".join(_WORDS.get(kind, kind) for kind in _WORDS if kind in errors)
    worst = _percent_of(max(errors.values()))
    return f"noisy: times of {kinds} are rough (about {worst}); profile more steps"


def _about(value: float | None, low: float | None, high: float | None) -> str:
    """Return the error of a latency in brackets; empty where it is not known."""
    reach = margin(value, low, high)
    return f" ({_percent_of(reach / value)})" if reach and value else ""


def _percent_of(error: float) -> str:
    """Return a relative error as text.

    >>> _percent_of(0.0712), _percent_of(0.0016), _percent_of(0.00001), _percent_of(4.2)
    ('\u00b1 7 %', '\u00b1 0.2 %', '\u00b1 0.1 %', 'more than \u00b1 100 %')
    """
    if error > 1:
        return "more than \u00b1 100 %"
    percents = max(100 * error, 0.1)
    return f"\u00b1 {percents:.0f} %" if percents >= 0.95 else f"\u00b1 {percents:.1f} %"


def _removed(spans: pl.DataFrame, metadata: Mapping[str, Any], *, of_program: bool = False) -> str:
    """Return how much overhead is removed, and of what it is not."""
    latency, overhead = spans["latency_ns"][0], spans["overhead_ns"][0]
    kinds = _exactness(spans)
    still = [
        _WORDS.get(kind, kind)
        for kind, row in kinds.items()
        if row[Inexact.INCLUDES_OVERHEAD] and row["free"] < row["known"]
    ]
    if not any(row["free"] for row in kinds.values()):
        return "overhead included"
    left = f"; {' and '.join(still)} still include some" if still else ""
    if of_program:
        own = f"; xsp's own {duration(overhead)} are removed" if (overhead or 0) >= 1 else ""
        return f"{duration(latency)} without profiling{own}{left}"
    return f"overhead removed{left}{_runs(spans)}"


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
    """Return the summary of a program, from the metadata, as printable lines."""
    return [printable(str(line)) for line in metadata.get("summary", ())]


def said_of_all(metadata: Mapping[str, Any]) -> frozenset[Inexact]:
    """Return the reasons why latencies are not exact that the headline says of the whole trace.

    Of another tool's recording it says that overhead is left, and how often all was seen.
    """
    return (
        frozenset((Inexact.INCLUDES_OVERHEAD, Inexact.FEW_SAMPLES))
        if metadata.get("imported")
        else frozenset()
    )


def made_of(spans: pl.DataFrame) -> dict[str, Any]:
    """Return the metadata of layers that are all made of operators; else nothing.

    Where only some layers are, as in a backward pass, each of these says so itself (`inexact`).
    """
    layers = spans.filter(pl.col("kind") == "layer", ~ON_DEVICE)
    if not layers.height or not (inexact_column(layers) & Inexact.INFERRED.bit).all():
        return {}
    return {"made_of": {"layer": "op"}}


def footer_lines(metadata: Mapping[str, Any]) -> list[str]:
    """Return notes on all spans of a kind, as printable lines below the tree."""
    return [
        f"{_WORDS.get(kind, kind)} are made of their {_WORDS.get(inner, inner)}: each lasts from "
        "the start of the first to the end of the last, less what recording these cost"
        for kind, inner in metadata.get("made_of", {}).items()
    ] + note_lines(metadata)


def note_lines(metadata: Mapping[str, Any]) -> list[str]:
    """Return the notes on how the trace was made, as printable lines."""
    return [
        printable(str(warning["message"]))
        for warning in metadata.get("warnings", ())
        if warning["code"] == NOTE
    ]


def unmarked(drawn: Outline, metadata: Mapping[str, Any]) -> Outline:
    """Return the outline without the reasons that the headline or the footer says of all.

    The row of a whole program gets the program's name.
    """
    drawn = drawn.without(said_of_all(metadata))
    if drawn.rows and drawn.rows[0].name == _PROGRAM:
        first = replace(drawn.rows[0], name=title(metadata))
        drawn = replace(drawn, rows=(first, *drawn.rows[1:]))
    kinds = _made_of_others(metadata)
    return drawn.without({Inexact.INFERRED}, {*kinds, *SUMS}) if kinds else drawn


def _made_of_others(metadata: Mapping[str, Any]) -> frozenset[str]:
    """Return the kinds of which no span need say that it is made of others.

    Where all layers are, so are parts of the graph beside its layers: reading parameters, say.
    """
    kinds = metadata.get("made_of", {})
    return frozenset((*kinds, "region")) if kinds else frozenset()


def warning_lines(metadata: Mapping[str, Any]) -> list[str]:
    """Return the trace's warnings as printable lines: code, colon and sentence."""
    return [
        f"{printable(str(warning['code']))}: {printable(str(warning['message']))}"
        for warning in metadata.get("warnings", ())
        if warning["code"] != NOTE
    ]


def folded_warning_lines(metadata: Mapping[str, Any]) -> list[str]:
    """Return `warning_lines`, of which those of one code that several groups have are one line.

    That is the first of them, which is of the group that took most time, and their number.
    """
    groups = tuple(f"{printable(str(group['name']))}: " for group in metadata.get("groups", ()))
    alike: dict[str, list[str]] = {}
    for line in warning_lines(metadata):
        code, _, message = line.partition(": ")
        alike.setdefault(code if message.startswith(groups) else line, []).append(line)
    return [
        first + (f" ({len(others)} more of this kind in trace.warnings)" if others else "")
        for first, *others in alike.values()
    ]


def top_warnings(metadata: Mapping[str, Any], *, rough: bool = False) -> tuple[list[str], int]:
    """Return the gravest warnings as printable lines, and the number of the others.

    Args:
        metadata: `trace.metadata`.
        rough: Whether the tree says by itself how noisy the times are.
    """
    lines = sorted(folded_warning_lines(metadata), key=lambda line: gravity(line.split(":")[0]))
    first = [line for line in lines if not (rough and line.startswith(NOISE))][:_MOST_WARNINGS]
    more = len(warning_lines(metadata)) - len(first)
    return first, more


def _claims(spans: pl.DataFrame, metadata: Mapping[str, Any]) -> Iterator[str]:
    """Yield the parts of the headline after the latency."""
    yield from _exact(spans, metadata)
    yield from _work(spans, metadata)


def _work(spans: pl.DataFrame, metadata: Mapping[str, Any]) -> Iterator[str]:
    """Yield how much of the time lies in library calls and on devices, and what is missing."""
    host = spans.filter(~ON_DEVICE)  # without operators that a CUDA graph replays
    covered, imported = coverage(host), bool(metadata.get("imported"))
    if covered and not (imported and covered.under_operator_pct < _TELLING_PCT):
        if round(covered.under_operator_pct, 1) >= 100:
            outside_operators = ""
        else:
            outside_operators = (
                f"; {100 - covered.under_operator_pct:.1f} % of their time is under no operator"
            )
        # The share of the operators' time in library calls, and where the rest is spent.
        # Both come from one table, so that the share and the rest make 100 %: a call that seems
        # longer than its operator, by its error, makes up for no time elsewhere.
        if covered.in_calls_pct > _IMPOSSIBLE_PCT:  # calls and operators come from different runs
            in_calls = "longer than the operators around them; both are too noisy to compare"
        else:
            by_name = outside_calls(host)
            parts = by_name["rest_ns"] / (by_name["own_ns"].sum() or 1)
            inside = 100 - 100 * float(parts.sum())
            # The operators with most of the time outside of library calls.
            names = by_name["name"]
            operators = [
                f"{printable(name.removeprefix('aten::'))} {percent(part)}"
                for name, part in zip(names, parts, strict=True)
                if part >= _LEAST_SHARE
            ]
            rest = f" (most of the rest: {', '.join(operators[:_MOST_NAMES])})" if operators else ""
            in_calls = f"{max(inside, 0.0):.0f} % of the operators' time{rest}"
        yield f"library calls: {in_calls}{outside_operators}"
    devices = _devices(spans, marks=imported)
    yield from filter(None, (devices, _synchronous(spans, metadata)))
    if missing := _missing(metadata):
        yield f"not measured: {', '.join(missing)}"


def _exact(spans: pl.DataFrame, metadata: Mapping[str, Any]) -> Iterator[str]:
    """Yield which latencies are exact, and why others are not."""
    kinds = _exactness(spans)
    parts = _parts_of_time(spans, metadata.get("groups", ()))
    if imported := metadata.get("imported"):
        # Yield which tool recorded a trace, and what that means for its latencies.
        tool = printable(str(imported.get("tool") or "another tool"))
        own = "; times on devices are their own" if spans["device"].is_not_null().any() else ""
        yield f"recorded by {tool}, whose overhead is in it and cannot be removed{own}"
    elif carried := parts.get(Inexact.INCLUDES_OVERHEAD):
        yield f"overhead removed: all but {percent(carried)} of the time{_runs(spans)}"
    else:
        # A kind is without overhead if all of its known latencies say so.
        without = [
            _WORDS.get(kind, kind) for kind, row in kinds.items() if row["free"] == row["known"]
        ]
        if without:
            yield f"overhead removed: {', '.join(without)}{_runs(spans)}"
    said, made = said_of_all(metadata), _made_of_others(metadata)
    kinds = {
        name: row | {Inexact.INFERRED: 0} if name in made else row for name, row in kinds.items()
    }
    for reason in Inexact:
        if reason in said or (reason is Inexact.INCLUDES_OVERHEAD and reason in parts):
            continue
        if reason in parts:
            yield f"{reason.words}: {percent(parts[reason])} of the time"
        elif affected := _affected(kinds, reason):
            yield f"{reason.words}: {affected}"


def _devices(spans: pl.DataFrame, *, marks: bool) -> str:
    """Return how long devices worked, and for what: the shares under layers, operators, marks."""
    work = attribution(spans, marks=marks)
    if work is None:
        return ""
    shares = {"a layer": work.layer, "an operator": work.operator, "a marked span": work.mark}
    parts = [
        f"{percent(share)} under {span}" for span, share in shares.items() if share is not None
    ]
    if work.nowhere >= _LEAST_NOWHERE or not parts:
        parts.append(f"{percent(work.nowhere)} unattributed")
    return f"device: {duration(spans['device_ns'][0])} of work, {', '.join(parts)}"


_SYNCHRONOUS = ("synchronous", "synchronous")  # the latter in files of earlier versions


def _synchronous(spans: pl.DataFrame, metadata: Mapping[str, Any]) -> str:
    """Return the model's latency in synchronous runs; empty if there were none."""
    passes = metadata.get("passes", ())
    latency = next(
        (pass_.get("latency_ns") for pass_ in passes if pass_.get("pass") in _SYNCHRONOUS), None
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
        .with_columns(**applies, known=1, free=told & ~applies[Inexact.INCLUDES_OVERHEAD])
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

    What lies around groups of steps is not exact for their reasons; its self time is. Reasons
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
        if reason is not Inexact.INFERRED
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
    return f"{part:,} of {whole:,} {'region spans' if kind == 'region' else word}"


def _missing(metadata: Mapping[str, Any]) -> list[str]:
    levels = metadata.get("levels", {})
    return [printable(str(level)) for level, state in levels.items() if state != MEASURED]
