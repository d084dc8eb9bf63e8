"""Makes rows of kernels and copies, each in the node that launched it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from xsp.level import Kind
from xsp.onnxruntime_profile import Event, rows_of
from xsp.provider import SpanRows
from xsp.text import full_name, short_name

_COPY = re.compile(r"Memcpy(Host|Device)(?:Array)?To(Host|Device)(?:Array)?")


def activities(events: Sequence[Event]) -> tuple[SpanRows, SpanRows]:
    """Return rows of kernels and of copies, each in the node that launched it."""
    nodes = _launching_nodes(events)
    kernels = [place for place in nodes if not _COPY.fullmatch(events[place].name)]
    copies = [(place, m) for place in nodes if (m := _COPY.fullmatch(events[place].name))]
    full = [full_name(events[place].name) for place in kernels]
    kernel = {
        "name": [short_name(name) for name in full],
        "attr.full_name": full,
        "attr.grid": _sizes(events, kernels, "grid"),
        "attr.block": _sizes(events, kernels, "block"),
    }
    copy = {
        "name": "memcpy",
        "attr.direction": [f"{match[1][0]}to{match[2][0]}" for _, match in copies],
    }
    return (
        _on_device(Kind.KERNEL, events, {place: nodes[place] for place in kernels}, kernel),
        _on_device(Kind.MEMCPY, events, {place: nodes[place] for place, _ in copies}, copy),
    )


def _on_device(
    kind: Kind, events: Sequence[Event], nodes: Mapping[int, int | None], columns: Mapping[str, Any]
) -> SpanRows:
    own = [events[place] for place in nodes]
    placed = {
        "thread": None,
        "device": 0,
        "stream": pl.Series([event.number("stream") for event in own], dtype=pl.Int64),
        "parent_id": pl.Series(list(nodes.values()), dtype=pl.Int64),
    }
    return rows_of(kind, own, {**placed, **columns})


def _sizes(events: Sequence[Event], places: Sequence[int], name: str) -> pl.Series:
    told = [[events[place].number(f"{name}_{axis}") for axis in "xyz"] for place in places]
    known = [sizes if None not in sizes else None for sizes in told]
    return pl.Series(known, dtype=pl.List(pl.Int64))


def _launching_nodes(events: Sequence[Event]) -> dict[int, int | None]:
    """Return the id of the node that launched each kernel, by the kernel's place.

    Kernels are written next to their node: those that name it behind it, those of earlier
    versions, which tell its operator alone, on either side.
    """
    found: dict[int, int | None] = {}
    waiting: list[int] = []
    before: int | None = None
    for place, event in enumerate(events):
        if event.is_on_device:
            found[place] = before if _launched(event, events, before) else None
            waiting += [place] if found[place] is None else []
            continue
        before = place + 1
        found |= {each: before for each in waiting if _launched(events[each], events, before)}
        waiting = []
    return found


def _launched(kernel: Event, events: Sequence[Event], node: int | None) -> bool:
    """Tell whether a kernel says that it is of the node with an id."""
    if node is None or not events[node - 1].is_node:
        return False
    by_name = kernel.text("parent_name")
    if by_name:
        return by_name == events[node - 1].name
    op = kernel.text("op_name")
    return op is not None and op == events[node - 1].text("op_name")
