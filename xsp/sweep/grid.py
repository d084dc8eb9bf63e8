"""Grids: a target and the values of each setting in, the points to measure out, curve by curve.

A curve is a row of points that differ in their batch alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TypeVar

from xsp.errors import UnknownTargetError
from xsp.sweep.point import Point
from xsp.sweep.setting import combinations
from xsp.target import Spec, Value, examine

T = TypeVar("T")

LARGEST = 1024  # batch at which doubling ends, whatever the throughput does


@dataclass(frozen=True, slots=True)
class Grid:
    """The points of a sweep.

    Attributes:
        curves: The points of each curve, batches ascending.
        doubling: Whether the batches double from 1 for as long as that is worth it, so that the
            points are the most that there may be.
    """

    curves: tuple[tuple[Point, ...], ...]
    doubling: bool = False

    @property
    def points(self) -> tuple[Point, ...]:
        """The points of all curves."""
        return tuple(point for curve in self.curves for point in curve)


def grid_of(  # noqa: PLR0913  # the axes of a sweep
    spec: Spec,
    batches: Sequence[int] | None,
    *,
    threads: Iterable[int] = (),
    inputs: Mapping[str, tuple[Value, ...]],
    precisions: Iterable[str] = (),
    compiled: Iterable[bool] = (),
    frameworks: Iterable[str] = (),
) -> Grid:
    """Return the product of all settings, of which the target takes each.

    Args:
        spec: The target, with the settings that all points have in common.
        batches: Batch sizes; None: doubling from 1, if the target takes a batch.
        threads: Numbers of threads.
        inputs: Values of further settings by name.
        precisions: Element types.
        compiled: Whether to compile.
        frameworks: What runs the model.

    Raises:
        UnknownTargetError: There is no such target, or it does not take a setting.
        TargetFailedError: The file of a function raised while it was imported.
        MeasurementError: A library or device that the target needs is missing.
    """
    bare = [
        Point(
            replace(
                spec,
                inputs=tuple(chosen.items()),
                precision=precision,
                compiled=whether,
                framework=framework,
            ),
            number,
        )
        for chosen, framework, precision, whether, number in product(
            combinations(inputs),
            _or_none(frameworks),
            _or_none(precisions),
            _or_none(compiled),
            _or_none(threads),
        )
    ]
    sizes = _examined(bare, batches)
    curves = tuple(tuple(_with_batch(point, size) for size in sizes) for point in bare)
    return Grid(curves, doubling=batches is None and len(sizes) > 1)


def _examined(points: Sequence[Point], batches: Sequence[int] | None) -> Sequence[int | None]:
    """Return the batches of each curve, once it is known that the target takes them."""
    specs = list(dict.fromkeys(point.spec for point in points))
    first = 1 if batches is None else batches[0]
    try:
        examine([replace(spec, batch=first) for spec in specs])
    except UnknownTargetError:
        if batches is not None or specs[0].file is None:
            raise
        examine(specs)  # what is in a file and has no batch to choose has points all the same
        return (None,)
    return _doublings() if batches is None else batches


def _doublings() -> tuple[int, ...]:
    return tuple(1 << power for power in range(LARGEST.bit_length()))


def _or_none(values: Iterable[T]) -> tuple[T | None, ...]:
    return tuple(values) or (None,)


def _with_batch(point: Point, batch: int | None) -> Point:
    return replace(point, spec=replace(point.spec, batch=batch))
