"""Rule on batches: cases of one model at several batch sizes in, those far from the best out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from xsp.analyses.advice.finding import Case, Finding
from xsp.level import Kind
from xsp.text import duration, percent


@dataclass(frozen=True, slots=True)
class _Batch:
    """A case, the model in it, and how many inputs that takes at once."""

    case: Case
    model: tuple[str | None, int, tuple[int, ...]]
    size: int

    @property
    def input_ns(self) -> float:
        """Latency per input."""
        return self.case.whole_ns / self.size

    @property
    def reach_ns(self) -> float | None:
        """How far the interval of the latency reaches; None for unknown."""
        return self.case.latency(np.array([0]))[1]


def batch_sizes(cases: Sequence[Case]) -> Iterator[tuple[Case, Finding]]:
    """Find traces of a model whose batch is slower, per input, than that of another trace.

    Models are the same where class, number of layers and the rest of the input's shape are.
    """
    batches = [batch for case in cases if (batch := _batch(case)) is not None]
    for batch in batches:
        rivals = [other for other in batches if other.model == batch.model]
        best = min(rivals, key=lambda other: other.input_ns)
        # What is not known to be more than noise is no reason to change the batch.
        if best.size != batch.size and batch.reach_ns is not None and best.reach_ns is not None:
            error = batch.reach_ns + best.reach_ns * batch.size / best.size
            yield batch.case, _slower(batch, best, error)


def _slower(batch: _Batch, best: _Batch, error_ns: float) -> Finding:
    sizes = sorted((batch.size, best.size))
    return Finding(
        "batch size",
        f"Use batches of {best.size}, where the latency of one allows that.",
        f"{duration(batch.input_ns)} per input in batches of {batch.size}, "
        f"{duration(best.input_ns)} in batches of {best.size}: "
        f"{percent(batch.input_ns / best.input_ns - 1)} more",
        batch.case.whole_ns - batch.size * best.input_ns,
        error_ns,
        f"{batch.size} inputs, each as quick as in batches of {best.size}",
        f"xsp sweep TARGET --batch {sizes[0]},{sizes[1]}",
    )


def _batch(case: Case) -> _Batch | None:
    """Return the batch of a trace of one model, None where there is none."""
    tree = case.tree
    layers = case.rows(Kind.LAYER)
    shapes = tree.attribute("input_shapes", pl.List(pl.List(pl.Int64)))
    if not len(layers) or tree.attribute("whole_block", pl.Boolean)[0]:
        return None
    first = shapes[int(layers[0])]
    if first is None or not len(first) or first[0] is None or not len(first[0]):
        return None
    size, *rest = first[0].to_list() if isinstance(first[0], pl.Series) else first[0]
    if not size or not case.whole_ns:
        return None
    kind = tree.attribute("module_class")[int(layers[0])]
    return _Batch(case, (kind, len(layers), tuple(rest)), int(size))
