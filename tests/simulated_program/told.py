"""Reads a simulated program's trace, row by row, under the keys of the truth."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simulated_program.script import What
from simulated_program.truth import Event
from xsp.reading.program import read_program
from xsp.record.program import ProgramRecord
from xsp.record.session import settings_of
from xsp.trace import Trace

Key = tuple[str, ...]
SETTINGS = settings_of(2)
REGIONS = ("region", "crossing", "request", "forward")
MARKED = "marked step"


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a trace.

    Attributes:
        key: What it is: `("call", model, shape)`, `("layer", name, "call" or "backward")`, …
        regions: Names of the regions around it.
        parent: Index of the row around it.
        took_ns: Its latency; `reach_ns`: half of its interval.
        shared: Whether rows of its parent's children, or its own occurrences, overlap.
    """

    key: Key
    regions: frozenset[str]
    parent: int
    name: str
    took_ns: float
    reach_ns: float
    self_ns: float
    overhead_ns: float
    calls: int
    inferred: bool
    thread: int
    shared: bool
    cut: bool


def read(record: ProgramRecord) -> Trace:
    """Return the trace of a program."""
    return read_program(record, name="program", settings=SETTINGS, levels={}).program


def rows_of(trace: Trace) -> list[Row]:
    """Return the rows of a trace, the block first."""
    groups = {group["name"]: group for group in trace.metadata["groups"]}
    index: dict[int, int] = {}
    rows: list[Row] = []
    for entry in trace.spans.iter_rows(named=True):
        index[entry["span_id"]] = len(rows)
        parent = index.get(entry["parent_id"], -1)
        around = rows[parent] if parent >= 0 else None
        known = entry["attributes"]
        regions = around.regions if around else frozenset()
        if around and around.key[0] in ("region", "marked"):
            regions |= {around.key[1]}
        low = entry["latency_low_ns"]
        rows.append(
            Row(
                key=_key(entry, groups, around),
                regions=regions,
                parent=parent,
                name=entry["name"],
                took_ns=entry["latency_ns"],
                reach_ns=0.0 if low is None else entry["latency_high_ns"] - entry["latency_ns"],
                self_ns=entry["self_ns"],
                overhead_ns=entry["overhead_ns"],
                calls=known["calls"],
                inferred=bool(known.get("calls_inferred")),
                thread=entry["thread"],
                shared=known.get("busy_ns") is not None,
                cut=bool(known.get("cut")),
            )
        )
    return rows


def _key(entry: Mapping[str, Any], groups: Mapping[str, Any], around: Row | None) -> Key:
    if around is None:
        return ("block",)
    known, name = entry["attributes"], entry["name"]
    plain = name.removeprefix("first call of ").removeprefix("first ")
    if known.get("is_group"):
        group = groups[plain]
        if group["model"] == MARKED:
            return "marked", MARKED
        if group["phase"] == "training step":
            return "step", group["model"]
        return "call", group["model"], group["shapes"][0].partition(" ")[0]
    if entry["kind"] == "op":
        return "op", name
    if entry["kind"] == "layer":
        if name == "?" or known.get("module_path"):
            return "layer", name, _innermost(around)
        twin = around.key[:2] in (("call", name), ("inner call", name))
        return "twin" if twin else "inner call", name
    if name.startswith("call of "):
        return "inner call", name.removeprefix("call of ")
    if plain.startswith("data loading"):
        return ("part",)
    if plain.startswith(REGIONS):
        return "region", plain
    return (plain,)


def _innermost(around: Row) -> str:
    """Return whether a layer below a row lies in a call or in a backward pass."""
    if around.key[0] == "layer":
        return around.key[2]
    return "backward" if around.key == ("backward",) else "call"


def true_key(event: Event, *, marked: bool) -> Key:
    """Return the key of the rows in which an event should be."""
    match event.what:
        case What.CALL:
            if event.inside or marked or event.name == "Loss":
                return "inner call", event.name
            return "call", event.name, event.shape
        case What.LAYER:
            return "layer", event.name, "backward" if event.within is What.BACKWARD else "call"
        case What.STEP:
            return "step", event.name
        case What.OPEN:
            return "marked" if event.name == MARKED else "region", event.name
        case What.PART:
            return ("part",)
        case What.OPTIMIZER:
            return ("optimizer step",)
        case _:
            return ("backward",)


@dataclass(slots=True)
class Sum:
    """Sum of a trace's rows with one key; `ns`."""

    took: float = 0.0
    reach: float = 0.0
    calls: int = 0
    inferred: bool = False
    overhead: float = 0.0
    logged: int = 0
    cut: bool = False

    def add(self, row: Row) -> None:
        """Add a row."""
        self.took += row.took_ns
        self.reach += row.reach_ns
        self.calls += row.calls
        self.inferred |= row.inferred
        self.cut |= row.cut
        self.overhead += row.overhead_ns


def sums(rows: list[Row], *, by_region: bool = False) -> dict[Any, Sum]:
    """Return the sums of rows by their key, and by the regions around them if asked."""
    result: defaultdict[Any, Sum] = defaultdict(Sum)
    for row in rows:
        result[(row.key, row.regions) if by_region else row.key].add(row)
    return dict(result)
