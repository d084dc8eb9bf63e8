"""Reads the nodes of a model in ONNX's format, with their inputs and outputs.

Numbers of weights are skipped, so that a file of many gigabytes is read in milliseconds, and
without the package `onnx`, which ONNX Runtime does not bring.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

# Fields of ONNX's messages, by their numbers in onnx.proto.
_MODEL_GRAPH = 7
_NODE, _INITIALIZER, _INPUT, _SPARSE = 1, 5, 11, 15
_NODE_INPUT, _NODE_OUTPUT, _NODE_NAME, _NODE_TYPE, _ATTRIBUTE, _METADATA = 1, 2, 3, 4, 5, 9
_SUBGRAPH, _SUBGRAPHS = 6, 11
_DIMS, _DATA_TYPE, _TENSOR_NAME = 1, 2, 8
_ENTRY_KEY, _ENTRY_VALUE, _VALUE_NAME = 1, 2, 1

# Name and bits of an element, by the number of ONNX's data type; other types have no fixed size.
_TYPES = {
    1: ("float32", 32),
    2: ("uint8", 8),
    3: ("int8", 8),
    4: ("uint16", 16),
    5: ("int16", 16),
    6: ("int32", 32),
    7: ("int64", 64),
    9: ("bool", 8),
    10: ("float16", 16),
    11: ("float64", 64),
    12: ("uint32", 32),
    13: ("uint64", 64),
    14: ("complex64", 64),
    15: ("complex128", 128),
    16: ("bfloat16", 16),
    17: ("float8_e4m3fn", 8),
    18: ("float8_e4m3fnuz", 8),
    19: ("float8_e5m2", 8),
    20: ("float8_e5m2fnuz", 8),
    21: ("uint4", 4),
    22: ("int4", 4),
}


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor that is a part of the model.

    Attributes:
        dtype: Its data type; empty if that is none of a fixed size.
        shape: Its sizes.
        nbytes: How many bytes it takes; 0 if that is not known.
    """

    dtype: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a graph.

    Attributes:
        name: Its name, which may be empty.
        op_type: Its operator, such as `Conv`.
        inputs: Names of the values put in.
        outputs: Names of the values that come out.
        metadata: What the exporter noted of the node.
    """

    name: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Graph:
    """The nodes of a model, those of sub-graphs (`If`, `Loop`) behind the node that runs them.

    Attributes:
        nodes: In an order in which they can run.
        inputs: Names of the values that are given to the graph, or to a sub-graph.
        weights: The initializers, by their names.
    """

    nodes: list[Node] = field(default_factory=list)
    inputs: set[str] = field(default_factory=set)
    weights: dict[str, Weight] = field(default_factory=dict)


def read_graph(model: bytes | memoryview) -> Graph:
    """Return the graph of a model.

    Raises:
        ValueError: The bytes are no model in ONNX's format.
    """
    graph = Graph()
    try:
        for number, value in _fields(memoryview(model)):
            if number == _MODEL_GRAPH:
                _read_into(graph, value)
    except (IndexError, TypeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError("not a model in ONNX's format") from error
    graph.inputs -= graph.weights.keys()
    return graph


def _read_into(graph: Graph, message: memoryview) -> None:
    for number, value in _fields(message):
        if number == _NODE:
            _read_node(graph, value)
        elif number == _INITIALIZER:
            _read_tensor(graph, value)
        elif number == _SPARSE:
            _read_tensor(graph, _first(value, 1))
        elif number == _INPUT:
            graph.inputs.add(_text(_first(value, _VALUE_NAME)))


def _read_node(graph: Graph, message: memoryview) -> None:
    texts: dict[int, list[str]] = {}
    metadata: dict[str, str] = {}
    inner: list[memoryview] = []
    for number, value in _fields(message):
        if number in (_NODE_INPUT, _NODE_OUTPUT, _NODE_NAME, _NODE_TYPE):
            texts.setdefault(number, []).append(_text(value))
        elif number == _ATTRIBUTE:
            inner += [each for at, each in _fields(value) if at in (_SUBGRAPH, _SUBGRAPHS)]
        elif number == _METADATA:
            metadata[_text(_first(value, _ENTRY_KEY))] = _text(_first(value, _ENTRY_VALUE))
    node = Node(
        "".join(texts.get(_NODE_NAME, ())),
        "".join(texts.get(_NODE_TYPE, ())),
        tuple(texts.get(_NODE_INPUT, ())),
        tuple(texts.get(_NODE_OUTPUT, ())),
        metadata,
    )
    graph.nodes.append(node)
    for each in inner:
        _read_into(graph, each)


def _read_tensor(graph: Graph, message: memoryview) -> None:
    sizes: list[int] = []
    name, data_type = "", 0
    for number, value in _fields(message):
        if number == _DIMS:
            sizes += [value] if isinstance(value, int) else list(_varints(value))
        elif number == _DATA_TYPE:
            data_type = value
        elif number == _TENSOR_NAME:
            name = _text(value)
    dtype, bits = _TYPES.get(data_type, ("", 0))
    graph.weights[name] = Weight(dtype, tuple(sizes), math.ceil(math.prod(sizes) * bits / 8))


def _first(message: memoryview, field_number: int) -> memoryview:
    found = (value for number, value in _fields(message) if number == field_number)
    return next(found, memoryview(b""))


def _text(value: memoryview) -> str:
    return str(value, "utf-8")


def _fields(message: memoryview) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each field of a message of protocol buffers."""
    at, end = 0, len(message)
    while at < end:
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        size = {1: 8, 5: 4}.get(kind)
        if size is None:
            if kind != 2:
                raise IndexError(at)
            size, at = _varint(message, at)
        if at + size > end:
            raise IndexError(at)
        yield key >> 3, message[at : at + size]
        at += size


def _varints(packed: memoryview) -> Iterator[int]:
    at = 0
    while at < len(packed):
        value, at = _varint(packed, at)
        yield value


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
