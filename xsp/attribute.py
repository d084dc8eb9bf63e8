"""Attributes: every field that providers and merging put into a span's `attributes`."""

from __future__ import annotations

from dataclasses import dataclass

from xsp.level import Kind

_LAYER = (Kind.LAYER,)
_OP = (Kind.OP,)
_FRAMEWORK = (Kind.LAYER, Kind.OP)
_ALL = tuple(Kind)


@dataclass(frozen=True, slots=True)
class Attribute:
    """One documented field of the column `attributes`; null where it means nothing.

    Attributes:
        name: The field's name; `xsp.` stands before it outside of xsp's own files.
        kinds: Kinds of span that carry it.
        type: Polars data type, as polars writes it.
        unit: Unit of the number, empty where it has none.
        meaning: One sentence.
    """

    name: str
    kinds: tuple[Kind, ...]
    type: str
    unit: str
    meaning: str


_SHAPES = "List(List(Int64))"
_STRINGS = "List(String)"

ATTRIBUTES: tuple[Attribute, ...] = (
    Attribute(
        "exact",
        _ALL,
        "Boolean",
        "",
        "Whether the latency comes from runs in which nothing deeper was recorded.",
    ),
    Attribute(
        "scaled_ns",
        _ALL,
        "Float64",
        "ns",
        "By how much the children's latencies exceed the span's own, and were shrunk to be drawn.",
    ),
    Attribute(
        "error",
        (Kind.PIPELINE, Kind.LAYER),
        "String",
        "",
        "Class of the exception that left the span.",
    ),
    Attribute(
        "module_path",
        _LAYER,
        "String",
        "",
        "Dotted path from the root module, empty for the root module itself.",
    ),
    Attribute("module_class", _LAYER, "String", "", "Class of the module, such as `Conv2d`."),
    Attribute(
        "module_type", _LAYER, "String", "", "The class with the name of the module it is from."
    ),
    Attribute(
        "call_index",
        _LAYER,
        "Int64",
        "",
        "Which call of the module it is within the evaluation, from 0.",
    ),
    Attribute("phase", _FRAMEWORK, "String", "", "`forward` or `backward`."),
    Attribute("input_shapes", _FRAMEWORK, _SHAPES, "elements", "Shape of each tensor put in."),
    Attribute("input_dtypes", _FRAMEWORK, _STRINGS, "", "Data type of each tensor put in."),
    Attribute("output_shapes", _LAYER, _SHAPES, "elements", "Shape of each tensor that came out."),
    Attribute("output_dtypes", _LAYER, _STRINGS, "", "Data type of each tensor that came out."),
    Attribute(
        "parameter_bytes",
        _LAYER,
        "Int64",
        "bytes",
        "Size of the module's parameters, with those of the modules in it.",
    ),
    Attribute(
        "buffer_bytes",
        _LAYER,
        "Int64",
        "bytes",
        "Size of the module's buffers, with those of the modules in it.",
    ),
    Attribute(
        "sequence", _OP, "Int64", "", "Autograd sequence number, by which backward finds forward."
    ),
    Attribute("allocated_bytes", _FRAMEWORK, "Int64", "bytes", "Memory allocated within the span."),
    Attribute("freed_bytes", _FRAMEWORK, "Int64", "bytes", "Memory freed within the span."),
    Attribute(
        "peak_bytes",
        _FRAMEWORK,
        "Int64",
        "bytes",
        "Most memory held at one time within the span, above what was held at its start.",
    ),
)


def attribute(name: str) -> Attribute | None:
    """Return what is known of an attribute, or None: pipeline spans carry the user's own."""
    return next((known for known in ATTRIBUTES if known.name == name), None)
