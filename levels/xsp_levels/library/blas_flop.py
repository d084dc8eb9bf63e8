"""Computes sizes and operation count of a BLAS or LAPACK call from its arguments. Pure.

Arguments are those of the Fortran interface, in the same order, as MKL writes them. The
counts of multiplications and additions are those of LAPACK Working Note 41
(Blackford and Dongarra, "Installation Guide for LAPACK", appendix C, netlib.org/lapack/
lawnspdf/lawn41.pdf); a complex multiplication is six floating-point operations, a
complex addition two. Scaling by alpha and beta is left out, as is customary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_COMPLEX = frozenset("CZ")
_LETTERS_OF_PRECISION = frozenset({"S", "D", "C", "Z", "SC", "DZ"})
_LETTERS = frozenset({"side", "uplo", "transa", "transb", "trans", "offset", "diag", "job", "jobz"})

# Counts of multiplications and of additions.
_Counts = tuple[float, float]
_Sizes = Mapping[str, Any]
# Names of the first arguments (`-`: not read), and the function that counts operations.
_Routine = tuple[tuple[str, ...], Callable[[_Sizes], _Counts] | None]


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one call.

    Attributes:
        problem: Letters (transposed, side, ...) and sizes: `TN m10 n4 k65536`.
        flops: Floating-point operations; None where no formula is known, as for
            iterative routines.
    """

    problem: str
    flops: int | None


def work(routine: str, arguments: Sequence[str]) -> Work | None:
    """Return the work of a call, None for an unknown routine.

    Args:
        routine: Name in the Fortran interface, in capitals.
        arguments: The call's arguments as text, at least the first ones.

    >>> work("SGEMM", ["T", "N", "10", "4", "65536"])
    Work(problem='TN m10 n4 k65536', flops=5242880)
    """
    found = _find(routine)
    if found is None:
        return None
    letter, (names, count) = found
    sizes = _sizes(names, arguments)
    if sizes is None:
        return None
    flops = None
    if count is not None:
        multiplications, additions = count(sizes)
        weights = (6, 2) if letter in _COMPLEX else (1, 1)
        flops = round(weights[0] * multiplications + weights[1] * additions)
    # No processor has computed more than 64 bits can count: the arguments were no sizes.
    letters = "".join(value for name, value in sizes.items() if name in _LETTERS)
    numbers = [f"{name}{value}" for name, value in sizes.items() if name not in _LETTERS]
    problem = " ".join([letters, *numbers] if letters else numbers)
    return Work(problem, flops if flops is None or flops < 1 << 63 else None)


def _find(routine: str) -> tuple[str, _Routine] | None:
    """Return the letter of a routine's element type, and the routine without the letter."""
    if routine.startswith("GEMM_"):  # mixed precision: GEMM_BF16BF16F32
        integer = "GEMM_OFFSET" if "S32" in routine else "GEMM"
        return "S", _ROUTINES["GEMM_PACK" if routine.endswith("_PACK") else integer]
    # Of two letters, the first is the result's and the second the elements': SCNRM2.
    for length in (1, 2):
        letters, rest = routine[:length], routine[length:]
        if letters in _LETTERS_OF_PRECISION and rest in _ROUTINES:
            return letters[-1], _ROUTINES[rest]
    return None


def _sizes(names: Sequence[str], arguments: Sequence[str]) -> dict[str, Any] | None:
    """Return the named arguments; None if an argument is missing or is no size."""
    if len(arguments) < len(names):
        return None
    sizes: dict[str, Any] = {}
    for name, argument in zip(names, arguments, strict=False):
        if name == "-":
            continue
        if name in _LETTERS:
            sizes[name] = argument.strip().upper()[:1]
        elif argument.isascii() and argument.strip().isdigit():
            sizes[name] = int(argument)
        else:
            return None
    return sizes


def _equal(count: float) -> _Counts:
    """Return as many multiplications as additions."""
    return count, count


def _gemm(s: _Sizes) -> _Counts:
    return _equal(s["m"] * s["n"] * s["k"] * s.get("batch", 1))


def _symm(s: _Sizes) -> _Counts:
    return _equal(s["m"] * s["n"] * (s["m"] if s["side"] == "L" else s["n"]))


def _syrk(s: _Sizes) -> _Counts:
    return _equal(s["k"] * s["n"] * (s["n"] + 1) / 2)


def _syr2k(s: _Sizes) -> _Counts:
    both = s["k"] * s["n"] ** 2
    return both, both + s["n"]


def _triangular(s: _Sizes) -> _Counts:
    inner, outer = (s["m"], s["n"]) if s["side"] == "L" else (s["n"], s["m"])
    return outer * inner * (inner + 1) / 2, outer * inner * (inner - 1) / 2


def _matrix(s: _Sizes) -> _Counts:
    return _equal(s["m"] * s["n"])


def _square(s: _Sizes) -> _Counts:
    return _equal(s["n"] ** 2)


def _half_square(s: _Sizes) -> _Counts:
    return s["n"] * (s["n"] + 1) / 2, s["n"] * (s["n"] - 1) / 2


def _vector(s: _Sizes) -> _Counts:
    return _equal(s["n"])


def _nrm2(s: _Sizes) -> _Counts:
    return 0, 2 * s["n"]  # per complex element two squares and two sums


def _scal(s: _Sizes) -> _Counts:
    return s["n"], 0


def _asum(s: _Sizes) -> _Counts:
    return 0, s["n"]


def _nothing(s: _Sizes) -> _Counts:
    return 0, 0


def _getrf(s: _Sizes) -> _Counts:
    long, short = max(s["m"], s["n"]), min(s["m"], s["n"])
    cubic = long * short**2 / 2 - short**3 / 6
    return (
        cubic + long * short / 2 - short**2 / 2 + 2 * short / 3,
        cubic - long * short / 2 + short / 6,
    )


def _getrs(s: _Sizes) -> _Counts:
    return s["nrhs"] * s["n"] ** 2, s["nrhs"] * s["n"] * (s["n"] - 1)


def _gesv(s: _Sizes) -> _Counts:
    factors, solution = _getrf({"m": s["n"], "n": s["n"]}), _getrs(s)
    return factors[0] + solution[0], factors[1] + solution[1]


def _getri(s: _Sizes) -> _Counts:
    n = s["n"]
    return 2 * n**3 / 3 + n**2 / 2 + 5 * n / 6, 2 * n**3 / 3 - 3 * n**2 / 2 + 5 * n / 6


def _potrf(s: _Sizes) -> _Counts:
    n = s["n"]
    return n**3 / 6 + n**2 / 2 + n / 3, n**3 / 6 - n / 6


def _potrs(s: _Sizes) -> _Counts:
    return s["nrhs"] * s["n"] * (s["n"] + 1), s["nrhs"] * s["n"] * (s["n"] - 1)


def _potri(s: _Sizes) -> _Counts:
    n = s["n"]
    return n**3 / 3 + n**2 + 2 * n / 3, n**3 / 3 - n**2 / 2 + n / 6


def _geqrf(s: _Sizes) -> _Counts:
    m, n = s["m"], s["n"]
    if m >= n:
        cubic = m * n**2 - n**3 / 3 + n**2 / 2
        return cubic + m * n + 23 * n / 6, cubic + 5 * n / 6
    cubic = n * m**2 - m**3 / 3
    return cubic + 2 * n * m - m**2 / 2 + 23 * m / 6, cubic + n * m - m**2 / 2 + 5 * m / 6


def _orgqr(s: _Sizes) -> _Counts:
    m, n, k = s["m"], s["n"], s["k"]
    cubic = 2 * m * n * k - (m + n) * k**2 + 2 * k**3 / 3
    return cubic + 2 * n * k - k**2 - 5 * k / 3, cubic + n * k - m * k + k / 3


def _routine(arguments: str, count: Callable[[_Sizes], _Counts] | None = None) -> _Routine:
    return tuple(arguments.split()), count


# By name without the letter of the element type.
_ROUTINES: dict[str, _Routine] = {
    "GEMM": _routine("transa transb m n k", _gemm),
    "GEMM3M": _routine("transa transb m n k", _gemm),
    "GEMM_COMPUTE": _routine("transa transb m n k", _gemm),
    "GEMM_OFFSET": _routine("transa transb offset m n k", _gemm),
    "GEMM_PACK": _routine("job trans m n k", _nothing),
    "GEMM_BATCH_STRIDED": _routine("transa transb m n k - - - - - - - - - - - batch", _gemm),
    "SYMM": _routine("side uplo m n", _symm),
    "HEMM": _routine("side uplo m n", _symm),
    "SYRK": _routine("uplo trans n k", _syrk),
    "HERK": _routine("uplo trans n k", _syrk),
    "SYR2K": _routine("uplo trans n k", _syr2k),
    "HER2K": _routine("uplo trans n k", _syr2k),
    "TRMM": _routine("side uplo transa diag m n", _triangular),
    "TRSM": _routine("side uplo transa diag m n", _triangular),
    "GEMV": _routine("trans m n", _matrix),
    "GER": _routine("m n", _matrix),
    "GERU": _routine("m n", _matrix),
    "GERC": _routine("m n", _matrix),
    "SYMV": _routine("uplo n", _square),
    "HEMV": _routine("uplo n", _square),
    "TRMV": _routine("uplo trans diag n", _half_square),
    "TRSV": _routine("uplo trans diag n", _half_square),
    "AXPY": _routine("n", _vector),
    "DOT": _routine("n", _vector),
    "DOTU": _routine("n", _vector),
    "DOTC": _routine("n", _vector),
    "NRM2": _routine("n", _nrm2),
    "ASUM": _routine("n", _asum),
    "SCAL": _routine("n", _scal),
    "COPY": _routine("n", _nothing),
    "SWAP": _routine("n", _nothing),
    "GETRF": _routine("m n", _getrf),
    "GETRS": _routine("trans n nrhs", _getrs),
    "GETRI": _routine("n", _getri),
    "GESV": _routine("n nrhs", _gesv),
    "POTRF": _routine("uplo n", _potrf),
    "POTRS": _routine("uplo n nrhs", _potrs),
    "POTRI": _routine("uplo n", _potri),
    "GEQRF": _routine("m n", _geqrf),
    "ORGQR": _routine("m n k", _orgqr),
    "UNGQR": _routine("m n k", _orgqr),
    "GESDD": _routine("jobz m n"),
    "GEEV": _routine("- - n"),
    "SYEVD": _routine("jobz uplo n"),
    "HEEVD": _routine("jobz uplo n"),
    "GELSY": _routine("m n nrhs"),
    "GELSD": _routine("m n nrhs"),
    "GELSS": _routine("m n nrhs"),
    "GELS": _routine("trans m n nrhs"),
}
