"""Tells the energy of a step, of a sample and of a token, and of layers where it was measured."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import polars as pl

from xsp.answer.analyses.contract import Need, analysis
from xsp.answer.analyses.model.evaluation import batch_of
from xsp.answer.analyses.tree import Tree
from xsp.level import Kind
from xsp.trace import Trace

_MOST_TOKENS = 2  # dimensions of whole numbers that are tokens: samples and places in a sequence
_COLUMNS = {
    "part": "`step` (or `program`), `sample`, `token`, `idle`, or the path of a layer.",
    "how": "`measured`; of a layer `repeated` by itself, or `regressed` over steps that last long.",
    "energy_j": "Energy of it: of one call, of a layer.",
    "energy_low_j": "Lower end of its 95 % interval.",
    "energy_high_j": "Upper end of its 95 % interval.",
    "power_w": "Mean power meanwhile.",
    "of_step_pct": "Energy as a share of the step's.",
    "source": "`counter` of the device, or `power` summed up over time.",
}


@analysis("How much energy does a step take, and where does it go?", _COLUMNS, needs=(Need.ENERGY,))
def energy(trace: Trace) -> pl.DataFrame:
    """Return the energy of a step, then of its parts, those with most energy first.

    `idle` is what the devices would have taken in the same time with nothing to do. A share of time
    is no measurement of energy, so layers are there only if their energy was measured.

    Args:
        trace: A trace measured where xsp can read energy.

    Raises:
        AnalysisError: The trace has no energy.
    """
    schema = {n: pl.String if n in ("part", "how", "source") else pl.Float64 for n in _COLUMNS}
    return pl.DataFrame(list(_rows(trace)), schema=schema)


def _rows(trace: Trace) -> Iterator[dict[str, Any]]:
    root = trace.root.attributes
    whole = {name: root[name] for name in ("energy_j", "energy_low_j", "energy_high_j")}
    source = root.get("energy_source")

    def row(part: str, how: str, values: dict[str, Any], **more: Any) -> dict[str, Any]:
        share = 100 * values["energy_j"] / whole["energy_j"] if whole["energy_j"] else None
        return {"part": part, "how": how, **values, "of_step_pct": share, **more}

    part = "program" if root.get("whole_block") else "step"
    yield row(part, "measured", whole, power_w=root["power_w"], source=source)
    idle_w = root.get("idle_power_w")
    if idle_w is not None and root["power_w"]:
        joules = whole["energy_j"] * idle_w / root["power_w"]
        yield row("idle", "measured", {"energy_j": joules}, power_w=idle_w, source=source)
    for unit, number in (("sample", batch_of(trace)), ("token", _tokens(trace))):
        if number:
            shared = {name: value / number for name, value in whole.items()}
            yield row(unit, "measured", shared, source=source)
    names = ("energy_j", "energy_low_j", "energy_high_j", "power_w", "energy_how", "module_path")
    layers = trace.layers
    fields = [name for name in names if name in layers["attributes"].struct.fields]
    if "energy_how" not in fields:
        return
    known = layers.select(pl.col("attributes").struct.field(*fields)).drop_nulls("energy_how")
    for found in known.sort("energy_j", descending=True).iter_rows(named=True):
        how, path = found.pop("energy_how"), found.pop("module_path")
        power_w = found.pop("power_w")
        yield row(path or "(the model)", how, found, power_w=power_w, source=source)


def _tokens(trace: Trace) -> int | None:
    """Return the tokens of a step: the size of the whole numbers that the outermost layer takes."""
    tree = Tree.of(trace)
    layers = tree.is_of(Kind.LAYER)
    if trace.root.attributes.get("whole_block") or not layers.any():
        return None
    first = int(layers.argmax())
    shapes = tree.attribute("input_shapes", pl.List(pl.List(pl.Int64)))[first]
    types = tree.attribute("input_dtypes", pl.List(pl.String))[first]
    if shapes is None or types is None or not len(shapes) or shapes[0] is None:
        return None
    shape = list(shapes[0])
    tokens = len(shape) == _MOST_TOKENS and str(types[0]).startswith("int")
    return math.prod(shape) if tokens else None
