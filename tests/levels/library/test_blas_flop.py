from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xsp_levels.library.blas_flop import _ROUTINES, work


def flops(routine: str, *arguments: object) -> int | None:
    found = work(routine, [str(argument) for argument in arguments])
    return None if found is None else found.flops


@pytest.mark.parametrize(
    ("routine", "arguments", "expected"),
    [
        ("SGEMM", ("T", "N", 10, 4, 65536), 2 * 10 * 4 * 65536),
        ("CGEMM", ("N", "N", 2, 3, 4), 8 * 2 * 3 * 4),
        ("GEMM_BF16BF16F32", ("N", "N", 2, 3, 4), 2 * 2 * 3 * 4),
        ("DSYMM", ("L", "U", 3, 5), 2 * 3 * 3 * 5),
        ("DSYMM", ("R", "U", 3, 5), 2 * 3 * 5 * 5),
        ("SSYRK", ("U", "N", 4, 6), 6 * 4 * 5),
        ("DTRSM", ("L", "U", "N", "N", 3, 5), 5 * 3 * 3),
        ("SGEMV", ("t", 64, 32), 2 * 64 * 32),
        ("DDOT", (100,), 200),
        ("GEMM_S8U8S32", ("N", "N", "F", 2, 3, 4), 2 * 2 * 3 * 4),
        ("GEMM_BF16BF16F32_PACK", ("A", "N", 2, 3, 4), 0),
        ("GEMM_S8U8S32_PACK", ("B", "N", 2, 3, 4), 0),
        ("SGEMM_PACK", ("A", "N", 2, 3, 4), 0),
        ("SGEMM", ("N", "N", 2**31, 2**31, 2), None),  # no processor has computed so much
        ("SCNRM2", (10,), 40),
        ("SNRM2", (10,), 20),
        ("DSCAL", (100,), 100),
        ("SCOPY", (100,), 0),
        ("DPOTRF", ("L", 1), 1),
        ("DGETRF", (1, 1), 1),
        ("SGESDD", ("A", 64, 64), None),
    ],
)
def test_operations_are_those_of_the_text_book(
    routine: str, arguments: tuple[object, ...], expected: int | None
) -> None:
    assert flops(routine, *arguments) == expected


@given(n=st.integers(2, 12))
def test_lu_counts_what_gaussian_elimination_does(n: int) -> None:
    divisions = sum(n - k - 1 for k in range(n))
    updates = sum((n - k - 1) ** 2 for k in range(n))
    counted = flops("DGETRF", n, n)
    assert counted is not None
    # Working note 41 counts the n reciprocals of the pivots' columns among them.
    assert abs(counted - (divisions + 2 * updates)) <= n


@given(n=st.integers(2, 12))
def test_cholesky_counts_what_its_loops_do(n: int) -> None:
    multiplications = additions = roots = 0
    for k in range(n):
        roots += 1
        multiplications += n - k - 1  # divisions of the column
        for j in range(k + 1, n):
            multiplications += n - j
            additions += n - j
    assert flops("SPOTRF", "L", n) == multiplications + additions + roots


@given(
    routine=st.text(max_size=12) | st.sampled_from([f"{a}{b}" for a in "SC" for b in _ROUTINES]),
    arguments=st.lists(st.sampled_from(["N", "L", "0", "7", "²", "٣"]) | st.text(max_size=6)),
)
def test_no_text_breaks_it(routine: str, arguments: list[str]) -> None:
    work(routine, arguments)
