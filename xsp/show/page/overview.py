"""Gathers the numbers, bars and texts of a trace for the page's first screen.

These say what was measured, where and how exactly, the latency and the throughput, and where the
time goes by level of the stack.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import polars as pl

from xsp.answer.analyses import text_of
from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.show.page.table import texts_of
from xsp.text import counted, duration, estimate, margin, percent, printable
from xsp.trace import Trace, attribute_column, footer_lines, headline_parts

# What a kind's self time is, for readers who have not read of kinds.
_OWN = {
    Kind.REGION: "outside of layers",
    Kind.LAYER: "layers' own code",
    Kind.OP: "operators",
    Kind.CALL: "library calls",
    Kind.LAUNCH: "launches",
    Kind.SYNC: "waiting for devices",
    Kind.SYSCALL: "system calls",
    Kind.KERNEL: "kernels",
    Kind.MEMCPY: "copies",
    Kind.MEMSET: "sets",
}


@dataclass(frozen=True, slots=True)
class Tile:
    """A number of the first screen.

    Attributes:
        label: What the number is.
        value: The number with its unit.
        margin: Half width of its 95 % interval, empty where that is not known.
        note: What to know of the number.
    """

    label: str
    value: str
    margin: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a bar: a kind of span (empty for what is none), its words, time and share."""

    kind: str
    words: str
    time: str
    share_pct: float
    share: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar whose parts make 100 %."""

    title: str
    note: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Overview:
    """The first screen about a trace."""

    name: str
    measured: str
    tiles: tuple[Tile, ...]
    bars: tuple[Bar, ...]
    exact: tuple[str, ...]
    doubts: str
    summary: tuple[str, ...]
    notes: tuple[str, ...]
    warnings: tuple[tuple[str, str], ...]
    facts: tuple[tuple[str, str], ...]


def overview_of(trace: Trace, levels: pl.DataFrame) -> Overview:
    """Return the first screen about a trace.

    Args:
        trace: The trace.
        levels: What `xsp.analyses.level_latency` says of the trace.
    """
    metadata = trace.metadata
    # How far the numbers go, as the first line of the printed tree says.
    claims = tuple(headline_parts(trace.spans, trace.metadata)[1:])
    # How many warnings there are, and of what kinds.
    if not trace.warnings:
        doubts = ""
    else:
        codes = ", ".join(dict.fromkeys(warning.code for warning in trace.warnings))
        doubts = printable(f"{counted(len(trace.warnings), 'warning')}: {codes}")
    return Overview(
        name=printable(trace.name),
        measured=_measured(trace),
        tiles=tuple(_tiles(trace)),
        bars=tuple(_bars(trace.spans, levels)),
        exact=claims,
        doubts=doubts,
        summary=tuple(printable(str(line)) for line in metadata.get("summary", ())),
        notes=tuple(footer_lines(metadata)),
        warnings=tuple((printable(one.code), printable(one.message)) for one in trace.warnings),
        facts=tuple(_facts(metadata)),
    )


def _measured(trace: Trace) -> str:
    """Return by what the trace was measured, where and when, as one line."""
    metadata = trace.metadata
    environment = metadata.get("environment") or {}
    imported = metadata.get("imported")
    by = f"recorded by {imported.get('tool')}" if imported else "measured by xsp"
    devices = environment.get("devices") or ()
    processor = environment.get("cpu")
    if processor and environment.get("logical_cores"):
        processor = f"{processor}, {counted(environment['logical_cores'], 'core')}"
    where = " and ".join(dict.fromkeys(filter(None, (*map(_device_name, devices), processor))))
    # When the measurement, or the recording, began.
    began_ns = metadata.get("began_unix_ns")
    if not isinstance(began_ns, int) or began_ns <= 0:
        when = ""
    else:
        when = f"{datetime.fromtimestamp(began_ns / 1e9, UTC):%Y-%m-%d %H:%M} UTC"
    parts = (
        f"{by}{' on ' + where if where else ''}",
        when,
        _versions(trace, environment),
    )
    return printable(" · ".join(filter(None, parts)))


def _device_name(device: Any) -> str:
    return str(device.get("name", "")) if isinstance(device, Mapping) else str(device)


def _versions(trace: Trace, environment: Mapping[str, Any]) -> str:
    """Return the versions of the frameworks that spans are of; those of PyTorch name none."""
    versions = environment.get("versions") or {}
    found = attribute_column(trace.spans, "framework").drop_nulls().unique().sort().to_list()
    names = (*(found or ("torch",)), "cuda runtime")
    told = [f"{name} {versions[name]}" for name in names if name in versions]
    if environment.get("python"):
        told.append(f"Python {environment['python']}")
    return ", ".join(told)


def _tiles(trace: Trace) -> Iterator[Tile]:
    spans = trace.spans
    root = spans.row(0, named=True)
    latency, low, high = (
        root[name] for name in ("latency_ns", "latency_low_ns", "latency_high_ns")
    )
    value, plus_minus, unit = estimate(latency, margin(latency, low, high))
    known = f"95 % interval {trace.metadata.get('intervals', '')}".strip()
    note = known if low is not None else "no interval: too few runs"
    name = "time of the whole program" if _whole(spans) else "latency of one step"
    yield Tile(name, f"{value} {unit}".strip(), f"{plus_minus} {unit}" if plus_minus else "", note)
    samples = samples_of(trace.spans)
    if samples and latency and not _whole(trace.spans):
        per_s = samples * 1e9 / latency
        text = f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"
        yield Tile("throughput", f"{text} samples/s", note=f"at batch size {samples}")
    if root["device_ns"] is not None and latency:
        busy = percent(root["device_ns"] / latency)
        yield Tile("device at work", busy, note=f"{duration(root['device_ns'])} of the latency")
    overhead = root["overhead_ns"]
    if overhead is None and trace.metadata.get("imported"):
        yield Tile("overhead of recording", "unknown", note="it is in the numbers of the host")
    present = set(spans["kind"])
    names = {
        Kind.LAYER: "layers",
        Kind.OP: "operators",
        Kind.CALL: "library calls",
        Kind.KERNEL: "kernels",
    }
    depth = ", ".join(words for kind, words in names.items() if kind.value in present)
    yield Tile("spans", f"{spans.height:,}", note=depth)


def _whole(spans: pl.DataFrame) -> bool:
    return bool(attribute_column(spans, "whole_block", pl.Boolean)[0])


def samples_of(spans: pl.DataFrame) -> int | None:
    """Return how many samples a step takes: the first size put into the first layer."""
    shapes = attribute_column(spans, "input_shapes", pl.List(pl.List(pl.Int64)))
    first = shapes.filter((spans["kind"] == Kind.LAYER.value) & shapes.is_not_null()).head(1)
    found = first.to_list()
    size = found[0][0][0] if found and found[0] and found[0][0] else None
    return int(size) if size else None


def _bars(spans: pl.DataFrame, levels: pl.DataFrame) -> Iterator[Bar]:
    known = {kind.value: words for kind, words in _OWN.items()}
    own = [
        (kind if kind in known else "", known.get(kind, kind), time or 0.0)
        for kind, time in levels.select("kind", "own_ns").iter_rows()
    ]
    yield Bar("Host", "each level's self time, without what runs inside it", tuple(_parts(own)))
    root = spans.row(0, named=True)
    if root["device_ns"] and root["latency_ns"]:
        # Kinds of device work, in proportion to the time at work, and the idle time.
        work = spans.group_by("kind").agg(pl.col("latency_ns").sum())
        times = dict(work.iter_rows())
        found = [
            (kind.value, _OWN[kind], times.get(kind.value) or 0.0) for kind in DEVICE_ACTIVITIES
        ]
        scale = root["device_ns"] / (sum(time for *_, time in found) or 1.0)
        idle = max(root["latency_ns"] - root["device_ns"], 0.0)
        device_times = [
            *((kind, words, time * scale) for kind, words, time in found),
            ("", "idle", idle),
        ]
        yield Bar("Device", "while the step runs", tuple(_parts(device_times)))


def _parts(times: Iterable[tuple[str, str, float]]) -> Iterator[Part]:
    known = [(kind, words, time) for kind, words, time in times if time > 0]
    whole = sum(time for *_, time in known) or 1.0
    for kind, words, time in known:
        part = time / whole
        yield Part(kind, words, duration(time), round(100 * part, 3), percent(part))


def _facts(metadata: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what is known of the measurement and of the machine, flat."""
    for section in ("imported", "plan", "environment", "levels"):
        for name, value in (metadata.get(section) or {}).items():
            if value is not None:
                yield printable(f"{section}: {name}"), printable(_fact(value))


def _fact(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_fact(part)}" for name, part in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_fact, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class Limit:
    """A possible limit of the latency: its name, share, time and evidence; texts for people."""

    candidate: str
    share: str
    time: str
    evidence: str


def limits_of(verdict: pl.DataFrame) -> tuple[Limit, ...]:
    """Return the rows of `xsp.analyses.verdict` with a share of the latency, the verdict first."""
    told = verdict.filter(pl.col("share_pct") > 0).sort(
        "verdict", "share_pct", descending=True, maintain_order=True
    )
    return tuple(
        Limit(
            row["candidate"],
            f"{text_of('share_pct', row['share_pct'])} %",
            duration(row["time_ns"]),
            printable(row["evidence"]),
        )
        for row in told.iter_rows(named=True)
    )


@dataclass(frozen=True, slots=True)
class Finding:
    """A piece of advice: what to do, what that may gain, and how one knows; texts for people."""

    advice: str
    share: str
    gain: str
    estimate: str
    evidence: str
    verify: str


def findings_of(advice: pl.DataFrame) -> tuple[Finding, ...]:
    """Return the rows of `xsp.answer.analyses.advice` as the first screen shows them."""
    gains = texts_of("gain_ns", advice)
    return tuple(
        Finding(
            *(printable(str(row["advice"])), f"{text_of('gain_pct', row['gain_pct'])} %", gain),
            *(printable(str(row[name] or "")) for name in ("estimate", "evidence", "verify")),
        )
        for row, gain in zip(advice.iter_rows(named=True), gains, strict=True)
    )
