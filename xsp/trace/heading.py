"""What stands above a trace's tree: what was measured, how, and what went wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from xsp.level import MEASURED
from xsp.provider import ON_DEVICE
from xsp.quantity import counted, duration, estimate, percent, printable
from xsp.trace.attribute import attribute_column
from xsp.trace.coverage import Coverage, attribution, coverage, unexplained

_IMPOSSIBLE_PCT = 105.0
_WORTH_SAYING, _MOST_NAMES = 0.01, 3  # of what no library call explains

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
    """Return the first line: name, latency of the model, what of it is without overhead."""
    return " · ".join((f"{title(metadata)}  {model_latency(spans)}", *_claims(spans, metadata)))


def title(metadata: Mapping[str, Any]) -> str:
    """Return the printable name of what was measured."""
    return printable(str(metadata.get("name") or "trace"))


def model_latency(spans: pl.DataFrame) -> str:
    """Return the root's latency with its 95 % interval's half width."""
    if not spans.height:
        return "no spans"
    latency, low, high = spans.select("latency_ns", "latency_low_ns", "latency_high_ns").row(0)
    margin = None if low is None or high is None else (high - low) / 2
    value, plus_minus, unit = estimate(latency, margin)
    return f"{value} ± {plus_minus} {unit}" if plus_minus else f"{value} {unit}".rstrip()


def remarks(metadata: Mapping[str, Any]) -> list[str]:
    """Return the trace's problems as printable sentences."""
    return [
        f"{printable(str(problem['code']))}: {printable(str(problem['message']))}"
        for problem in metadata.get("problems", ())
    ]


def _claims(spans: pl.DataFrame, metadata: Mapping[str, Any]) -> Iterator[str]:
    kinds = _exactness(spans)
    exact = [_WORDS.get(kind, kind) for kind, row in kinds.items() if row["exact"] == row["known"]]
    if exact:
        yield f"without overhead: {', '.join(exact)}{_runs(spans)}"
    inexact = [
        _share_of(kind, row["inexact"], row["known"])
        for kind, row in kinds.items()
        if row["inexact"]
    ]
    if inexact:
        yield f"still with overhead: {', '.join(inexact)}"
    host = spans.filter(~ON_DEVICE)  # not the operators that a graph replays
    if found := coverage(host):
        yield f"library calls: {_explained(host, found)}{_astray(found)}"
    if said := _devices(spans):
        yield said
    if said := _serialised(spans, metadata):
        yield said
    if missing := _missing(metadata):
        yield f"not measured: {', '.join(missing)}"


def _explained(spans: pl.DataFrame, found: Coverage) -> str:
    if found.explained_pct > _IMPOSSIBLE_PCT:  # each is measured in runs of its own
        return "longer than the operators around them, so these are not known well enough to tell"
    return f"{min(found.explained_pct, 100):.0f} % of the operators' time{_rest(spans)}"


def _rest(spans: pl.DataFrame) -> str:
    """Return in which operators most of the time is that no library call explains."""
    by_name = unexplained(spans)
    parts = by_name["rest_ns"] / (by_name["own_ns"].sum() or 1)
    said = [
        f"{printable(name.removeprefix('aten::'))} {percent(part)}"
        for name, part in zip(by_name["name"], parts, strict=True)
        if part >= _WORTH_SAYING
    ]
    return f" (most of the rest: {', '.join(said[:_MOST_NAMES])})" if said else ""


def _astray(found: Coverage) -> str:
    if round(found.under_operator_pct, 1) >= 100:
        return ""
    return f", {100 - found.under_operator_pct:.1f} % of theirs lies under no operator"


def _devices(spans: pl.DataFrame) -> str:
    """Return how long devices worked, and what of their work belongs where."""
    found = attribution(spans)
    if found is None:
        return ""
    shares = {"a layer": found.layer, "an operator": found.operator}
    said = [f"{percent(part)} under {what}" for what, part in shares.items() if part is not None]
    said.append(f"{percent(found.nowhere)} unattributed")
    return f"device: {duration(spans['device_ns'][0])}, of its work {', '.join(said)}"


def _serialised(spans: pl.DataFrame, metadata: Mapping[str, Any]) -> str:
    """Return the model's latency in a serialised measurement, if there was one."""
    rungs = metadata.get("rungs", ())
    latency = next(
        (one.get("latency_ns") for one in rungs if one.get("rung") == "serialised"), None
    )
    if latency is None or not spans.height:
        return ""
    what = "one thread" if spans["device_ns"][0] is None else "each kernel waited for"
    return f"with {what}: {duration(latency)}"


def _exactness(spans: pl.DataFrame) -> dict[str, dict[str, int]]:
    """Return per kind how many latencies are known, how many exact, and how many not."""
    spans = spans.filter(~attribute_column(spans, "replayed", pl.Boolean).fill_null(value=False))
    exact = attribute_column(spans, "exact", pl.Boolean)
    counts = (
        spans.select("kind", known=pl.col("latency_ns").is_not_null())
        .with_columns(exact=exact)
        .group_by("kind", maintain_order=True)
        .agg(
            pl.col("known").sum(),
            exact=(pl.col("known") & pl.col("exact").fill_null(value=False)).sum(),
            inexact=(pl.col("known") & ~pl.col("exact").fill_null(value=True)).sum(),
        )
        .filter(pl.col("known") > 0)
    )
    rows = {row["kind"]: row for row in counts.iter_rows(named=True)}
    return {kind: rows[kind] for kind in sorted(rows, key=[*_WORDS, *rows].index)}


def _runs(spans: pl.DataFrame) -> str:
    fewest, most = spans.select(
        pl.col("runs").min().alias("fewest"), pl.col("runs").max().alias("most")
    ).row(0)
    if not most:
        return ""
    return f" ({counted(most, 'run')})" if fewest == most else f" ({fewest} to {most} runs)"


def _share_of(kind: str, part: int, whole: int) -> str:
    word = _WORDS.get(kind, kind)
    return word if part == whole else f"{part:,} of {whole:,} {word}"


def _missing(metadata: Mapping[str, Any]) -> list[str]:
    """Return the levels that were asked for and left out; a problem says why."""
    levels = metadata.get("levels", {})
    return [printable(str(level)) for level, state in levels.items() if state != MEASURED]
