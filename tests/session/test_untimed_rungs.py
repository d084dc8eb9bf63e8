from __future__ import annotations

import pytest

from xsp.level import Kind
from xsp.session.selection import Selection

MODEL = frozenset({Kind.PIPELINE})
FRAMEWORK = MODEL | {Kind.LAYER, Kind.OP}
KERNELS = frozenset({Kind.LAUNCH, Kind.KERNEL})


@pytest.mark.parametrize(
    ("kinds", "detailed"),
    [
        (MODEL, None),
        (FRAMEWORK, FRAMEWORK),
        (FRAMEWORK | {Kind.CALL}, FRAMEWORK),  # the timed runs tell all of a library call
        (FRAMEWORK | {Kind.CALL} | KERNELS, FRAMEWORK | {Kind.CALL} | KERNELS),
        (MODEL | {Kind.CALL}, MODEL | {Kind.CALL}),
    ],
)
def test_library_calls_are_recorded_in_detail_runs_only_for_the_kernels_below_them(
    kinds: frozenset[Kind], detailed: frozenset[Kind] | None
) -> None:
    untimed = [rung for rung in Selection((), kinds, {}).rungs if not rung.timed]
    assert [rung.kinds for rung in untimed] == ([] if detailed is None else [detailed])
