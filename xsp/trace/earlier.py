"""Brings spans, metadata and typical runs of format 1 into the words of today's format.

Format 1 called a region `pipeline`, a pass `rung` and a warning `problem`, and had other names for
some attributes and for the reasons why a latency is not exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

_KIND = {"pipeline": "region"}
_REASON = {
    "carried": "includes_overhead",
    "cold": "warm_up_only",
    "few": "few_samples",
    "varies": "unstable",
    "derived": "inferred",
}
_ATTRIBUTE = {
    "serialised_ns": "synchronous_ns",
    "own_functions": "self_functions",
    "own_lines": "self_lines",
    "own_shares": "self_shares",
    "own_samples": "self_samples",
}
_PASS = {"pipeline": "region", "serialised": "synchronous"}


def spans_of_format_1(spans: pl.DataFrame) -> pl.DataFrame:
    """Rename kinds, attributes and reasons in a table of spans; other tables stay as they are."""
    spans = _with_kinds(spans)
    attributes = spans.schema.get("attributes")
    if not isinstance(attributes, pl.Struct):
        return spans
    column = pl.col("attributes")
    fields = []
    for field in attributes.fields:
        values = column.struct.field(field.name)
        if field.name == "inexact" and field.dtype == pl.List(pl.String):
            values = values.list.eval(pl.element().replace(_REASON))
        fields.append(values.alias(_ATTRIBUTE.get(field.name, field.name)))
    return spans.with_columns(
        pl.when(column.is_not_null()).then(pl.struct(fields)).alias("attributes")
    )


def runs_of_format_1(runs: pl.DataFrame) -> pl.DataFrame:
    """Rename the passes and kinds in a table of typical runs."""
    if runs.schema.get("rung") != pl.String:
        return runs
    return _with_kinds(runs.with_columns(pl.col("rung").replace(_PASS)).rename({"rung": "pass"}))


def metadata_of_format_1(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Rename the entries of metadata that tell of warnings and passes."""
    renamed = dict(metadata)
    if "problems" in renamed:
        renamed["warnings"] = renamed.pop("problems")
    if "rungs" in renamed:
        renamed["passes"] = _passes(renamed.pop("rungs"))
    for name in ("groups", "group"):
        groups = renamed.get(name)
        if isinstance(groups, list):
            renamed[name] = [_group(group) for group in groups]
    return renamed


def _group(group: Any) -> Any:
    if not isinstance(group, dict) or "rungs" not in group:
        return group
    renamed = dict(group)
    renamed["passes"] = _passes(renamed.pop("rungs"))
    return renamed


def _passes(rungs: Any) -> Any:
    if not isinstance(rungs, list) or not all(isinstance(rung, dict) for rung in rungs):
        return rungs
    return [
        {"pass": _PASS.get(rung.get("rung"), rung.get("rung"))}
        | {key: value for key, value in rung.items() if key != "rung"}
        for rung in rungs
    ]


def _with_kinds(frame: pl.DataFrame) -> pl.DataFrame:
    if frame.schema.get("kind") != pl.String:
        return frame
    return frame.with_columns(pl.col("kind").replace(_KIND))
