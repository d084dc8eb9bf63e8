from __future__ import annotations

from collections.abc import Sequence

import pytest
from gpu import MAIN, WORKER

from xsp.correlation.parent import correlate
from xsp.evaluation.tree_row import is_ambiguous
from xsp.provider.row import span_rows

Row = tuple[str, str, int, int, int | None]

ROOT = span_rows(
    {"kind": ["pipeline"], "name": "root", "start_ns": 0, "end_ns": 100, "thread": MAIN}
)
KERNEL: Row = ("kernel", "gemm", 40, 50, None)
NET: Row = ("layer", "net", 10, 90, MAIN)
OP: Row = ("op", "mm", 30, 60, MAIN)


def parent_of_kernel(*rows: Row, serial: bool = True) -> tuple[str, bool]:
    """Return what the kernel lies in, and whether that is in doubt."""
    kind, name, start, end, thread = zip(*rows, KERNEL, strict=True)
    device = [None] * len(rows) + [0]
    columns = {"kind": kind, "name": name, "start_ns": start, "end_ns": end, "thread": thread}
    rest = {"device": device, "stream": device, "correlation_id": [None] * len(rows) + [9]}
    found = correlate(ROOT, span_rows({**columns, **rest}), serial=serial)
    frame = found.frames[0]
    at = frame["name"].to_list().index("gemm")
    ambiguous = bool(is_ambiguous(frame)[at])
    assert found.unlaunched == ambiguous
    return frame["name"][frame["parent"][at]], ambiguous


def test_a_kernel_lies_in_the_innermost_row_that_encloses_it() -> None:
    assert parent_of_kernel(NET, OP) == ("mm", False)
    assert parent_of_kernel(NET, ("op", "mm", 30, 49, MAIN)) == ("net", False)
    assert parent_of_kernel(NET, ("op", "mm", 41, 60, MAIN)) == ("net", False)
    assert parent_of_kernel(("layer", "early", 10, 20, MAIN)) == ("root", False)


def test_only_where_the_host_waits() -> None:
    assert parent_of_kernel(NET, OP, serial=False) == ("root", True)


def test_it_never_lies_in_a_launch_or_deeper() -> None:
    launch: Row = ("launch", "go", 35, 55, MAIN)
    syscall: Row = ("syscall", "ioctl", 36, 54, MAIN)
    assert parent_of_kernel(NET, OP, launch, syscall) == ("mm", False)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([(*OP[:4], WORKER)], ("root", True)),  # backward, or another thread beside ours
        ([("pipeline", "step", 20, 80, MAIN), (*OP[:4], WORKER)], ("root", True)),
        ([NET, (*OP[:4], WORKER)], ("root", True)),
        ([OP, ("layer", "other", 35, 55, WORKER)], ("root", True)),
        ([OP, ("layer", "other", 45, 55, WORKER)], ("mm", False)),
        ([("pipeline", "step", 20, 80, MAIN)], ("step", False)),
    ],
)
def test_on_several_threads_the_only_one_at_work_is_the_one(
    rows: Sequence[Row], expected: tuple[str, bool]
) -> None:
    assert parent_of_kernel(*rows) == expected


def test_a_kernel_that_outlasts_its_evaluation_has_no_parent_in_time() -> None:
    rows = span_rows(
        {"kind": ["kernel"], "name": "gemm", "start_ns": 90, "end_ns": 120, "device": 0}
    )
    found = correlate(ROOT, rows, serial=True)
    assert (found.unlaunched, found.frames[0]["parent"].to_list()) == (1, [-1, 0])


def test_kernels_that_overlap_lie_in_no_other() -> None:
    rows = span_rows(
        {
            "kind": ["op", "kernel", "kernel", "op", "kernel"],
            "name": ["a", "k1", "k2", "b", "k3"],
            "start_ns": [10, 20, 22, 60, 65],
            "end_ns": [50, 40, 30, 90, 80],
            "thread": [MAIN, None, None, MAIN, None],
            "device": [None, 0, 0, None, 0],
        }
    )
    roots = span_rows(
        {"kind": ["pipeline"] * 2, "name": "root", "start_ns": [0, 55], "end_ns": [55, 100]}
        | {"thread": MAIN}
    )
    first, second = correlate(roots, rows, serial=True).frames
    assert first["parent"].to_list() == [-1, 0, 1, 1]
    assert second["parent"].to_list() == [-1, 0, 1]
