"""Makes plain records of calls of layers, with the layers' paths, classes and sizes.

Records hold numbers and strings only, so that rows can be made later, in another process too, and
records do not keep the model alive.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from xsp_levels.framework.keras.index import LayerIndex
from xsp_levels.framework.keras.layer_tree import LayerFacts, Path, facts, paths, root_name
from xsp_levels.framework.keras.shape import Shapes

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RawCalls:
    """The calls of one thread, as the recorder kept them.

    Attributes:
        thread: `threading.get_ident()`.
        calls: Layer, start and end in nanoseconds of each call, one after the other, in the order
            of the ends.
        failed: Number of each call that raised, and the exception's class.
        notes: Shapes of inputs and of outputs of each call, None where unknown; empty in timed
            runs.
    """

    thread: int
    calls: list[Any]
    failed: list[tuple[int, str]]
    notes: list[tuple[Shapes | None, Shapes | None]]


@dataclass(frozen=True, slots=True)
class ThreadCalls:
    """The calls of one thread by start, an enclosing call before the calls inside.

    Attributes:
        thread: `threading.get_ident()`.
        layer: Index into `LayerRecords.layers`.
        outermost: Index of the layer of the outermost call around each call.
        group: Ordinal of the outermost call around each call, on this thread.
        start_ns: Begin of each call.
        end_ns: End of each call.
        errors: Class of the exception that a call raised, by index of the call.
        notes: Shapes of inputs and of outputs by call; empty in timed runs.
    """

    thread: int
    layer: Integers
    outermost: Integers
    group: Integers
    start_ns: Integers
    end_ns: Integers
    errors: dict[int, str]
    notes: tuple[tuple[Shapes | None, Shapes | None], ...] = ()


@dataclass(frozen=True, slots=True)
class LayerRecords:
    """The calls of Keras's layers in a visit.

    Attributes:
        threads: The calls, thread by thread.
        layers: Class and sizes of every layer that was called.
        names: The name that each of them has as an outermost one.
        homes: The path of a layer from its root, by (layer of the outermost call, layer); None
            where the layer is not held by the root.
        nested_roots: Layers called outermost though another layer called outermost holds them.
        index: All layers of the program, by their scopes in graphs.
        dropped: Number of calls that had not ended.
        warnings: Sentences about what could not be recorded.
    """

    threads: tuple[ThreadCalls, ...] = ()
    layers: tuple[LayerFacts, ...] = ()
    names: tuple[str, ...] = ()
    homes: dict[tuple[int, int], Path | None] = field(default_factory=dict)
    nested_roots: frozenset[int] = frozenset()
    index: LayerIndex = field(default_factory=LayerIndex)
    dropped: int = 0
    warnings: tuple[str, ...] = ()


def layer_records(
    threads: Sequence[RawCalls],
    index: LayerIndex,
    *,
    dropped: int = 0,
    warnings: tuple[str, ...] = (),
) -> LayerRecords:
    """Return records of the calls of all threads, with class and sizes of the layers."""
    layers: dict[int, Any] = {}
    for raw in threads:
        layers.update((id(layer), layer) for layer in raw.calls[::3])
    number = {key: at for at, key in enumerate(layers)}
    called = list(layers.values())
    calls = tuple(_thread_calls(raw, number) for raw in threads)
    pairs = {
        (int(outermost), int(layer))
        for thread in calls
        for outermost, layer in zip(thread.outermost, thread.layer, strict=True)
    }
    homes, nested = _homes(pairs, called)
    known: dict[int, Any] = {}
    return LayerRecords(
        threads=calls,
        layers=tuple(facts(layer, known) for layer in called),
        names=tuple(root_name(layer) for layer in called),
        homes=homes,
        nested_roots=frozenset(nested),
        index=index,
        dropped=dropped,
        warnings=warnings,
    )


def _thread_calls(raw: RawCalls, number: dict[int, int]) -> ThreadCalls:
    layer = np.array([number[id(layer)] for layer in raw.calls[::3]], dtype=np.int64)
    start = np.array(raw.calls[1::3], dtype=np.int64)
    end = np.array(raw.calls[2::3], dtype=np.int64)
    order = np.lexsort((-np.arange(len(start)), -end, start))
    layer, start, end = layer[order], start[order], end[order]
    before = np.maximum.accumulate(np.concatenate(([np.iinfo(np.int64).min], end[:-1])))
    group = np.cumsum(start >= before[: len(start)]) - 1
    errors = dict(raw.failed)
    return ThreadCalls(
        thread=raw.thread,
        layer=layer,
        outermost=layer[np.unique(group, return_index=True)[1]][group],
        group=group,
        start_ns=start,
        end_ns=end,
        errors={i: errors[n] for i, n in enumerate(order.tolist()) if n in errors},
        notes=tuple(raw.notes[n] for n in order) if raw.notes else (),
    )


def _homes(
    pairs: Iterable[tuple[int, int]], layers: Sequence[Any]
) -> tuple[dict[tuple[int, int], Path | None], set[int]]:
    """Return the path of every called layer in its root's tree, and the nested roots."""
    outermost = {root for root, _ in pairs}
    trees = {root: paths(layers[root]) for root in outermost}
    parents = {
        root: next((o for o in outermost - {root} if id(layers[root]) in trees[o]), root)
        for root in outermost
    }
    homes = {
        (root, layer): trees[_top(root, parents)].get(id(layers[layer])) for root, layer in pairs
    }
    return homes, {root for root, parent in parents.items() if parent != root}


def _top(root: int, parents: dict[int, int]) -> int:
    seen: set[int] = set()
    while root not in seen:
        seen.add(root)
        root = parents[root]
    return root
