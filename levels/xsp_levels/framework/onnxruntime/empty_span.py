"""A session in; a node that does next to nothing, to be recorded by ONNX Runtime's profiler, out.

ONNX Runtime puts together what it tells of a node (shapes, statistics of threads) before it reads
the clock at the node's end: 3 to 5 us, which are in the node's time. The statistics are those of
each thread of the session, so that the empty node's session has as many threads.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from xsp.provider import EmptySpan
from xsp_levels.framework.onnxruntime.entry_point import unseen

# What ONNX calls these numbers: kinds of fields, the type of elements, versions of its format.
_NUMBER, _BYTES = 0, 2
_FLOAT = 1
_FORMAT, _OPERATORS = 8, 17

EMPTY = "Mul"
_CHAIN = ("Add",) * 8  # what runs before: the first nodes of a run take longer than those after
_PROVIDER = "CPUExecutionProvider"


def empty_span(session: Any, record: Callable[..., object]) -> EmptySpan:
    """Return an empty node.

    The node multiplies a number by another: two inputs, as most nodes have. What it takes
    unrecorded is what a session takes longer than one that lacks this node.

    Args:
        session: The user's session, whose number of threads counts.
        record: Makes a run while the provider is armed; takes the session, and what it is run with.
    """
    threads = session._sess.session_options.intra_op_num_threads
    whole, rest = (_session(operators, threads) for operators in ((*_CHAIN, EMPTY), _CHAIN))
    inputs = {"x": sys.modules["numpy"].zeros(1, "float32")}
    return EmptySpan(
        EMPTY,
        partial(_unseen, record, whole, None, inputs),
        bare=partial(_unseen, whole.run, None, inputs),
        apart=partial(_unseen, rest.run, None, inputs),
    )


def model_bytes(operators: tuple[str, ...]) -> bytes:
    """Return a model in ONNX's format: operators in a row, each on the last one's output and `x`.

    >>> len(model_bytes(("Add", "Mul"))) < 120
    True
    """
    values = ["x", *(f"v{number}" for number in range(len(operators)))]
    nodes = b"".join(
        _field(1, _node(operator, values[at], values[at + 1]))
        for at, operator in enumerate(operators)
    )
    graph = nodes + _field(2, b"empty") + _field(11, _value("x")) + _field(12, _value(values[-1]))
    versions = _field(1, _FORMAT) + _field(8, _field(2, _OPERATORS))
    return versions + _field(7, graph)


def _session(operators: tuple[str, ...], threads: int) -> Any:
    ort = sys.modules["onnxruntime"]
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    with unseen():
        return ort.InferenceSession(model_bytes(operators), options, providers=[_PROVIDER])


def _unseen(call: Callable[..., object], *args: Any) -> object:
    with unseen():
        return call(*args)


def _node(operator: str, taken: str, made: str) -> bytes:
    inputs = b"".join(_field(1, name.encode()) for name in (taken, "x"))
    return (
        inputs + _field(2, made.encode()) + _field(3, made.encode()) + _field(4, operator.encode())
    )


def _value(name: str) -> bytes:
    """Return the description of a value that is one number."""
    shape = _field(1, _field(1, 1))
    return _field(1, name.encode()) + _field(2, _field(1, _field(1, _FLOAT) + _field(2, shape)))


def _field(number: int, content: bytes | int) -> bytes:
    """Return a field of a message of protocol buffers."""
    if isinstance(content, int):
        return _varint(number << 3 | _NUMBER) + _varint(content)
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    low, high = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + _varint(high) if high else bytes([low])
