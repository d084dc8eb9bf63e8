"""A model in ONNX's format in; its nodes, with what goes in and comes out of them, out.

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

# Bits of an element, by the number of ONNX's data type; others are texts, or not known.
_BITS = {
    **dict.fromkeys((1, 6, 12), 32),
    **dict.fromkeys((2, 3, 9, 17, 18, 19, 20, 24), 8),
    **dict.fromkeys((4, 5, 10, 16), 16),
    **dict.fromkeys((7, 11, 13, 14), 64),
    **dict.fromkeys((21, 22, 23), 4),
    **dict.fromkeys((25, 26), 2),
    15: 128,
}


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
        parameter_bytes: Size of each initializer, by its name.
    """

    nodes: list[Node] = field(default_factory=list)
    inputs: set[str] = field(default_factory=set)
    parameter_bytes: dict[str, int] = field(default_factory=dict)


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
    graph.inputs -= graph.parameter_bytes.keys()
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
    graph.parameter_bytes[name] = math.ceil(math.prod(sizes) * _BITS.get(data_type, 0) / 8)


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
