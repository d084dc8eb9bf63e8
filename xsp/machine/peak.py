"""Measures this machine's peak operations and bytes per second by number of threads.

They are those of a product of matrices and a copy, of float32, in PyTorch where that is installed,
else in numpy; the best of several is the peak. `xsp doctor --peak` keeps the peaks in a file of
the user's, by machine, for a home may be shared between machines.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from xsp.errors import MeasurementError
from xsp.machine.atomic_file import replacing
from xsp.machine.folder import state_folder
from xsp.text import counted

_ROWS = 2048  # of each matrix: 16 MiB, more than caches near a core hold, 17 GFLOP a product
_COPIED = 1 << 28  # bytes: more than caches of common processors hold
_SECONDS = 2.0  # for each of the two, after the warm-up
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_PROGRAM = "import sys; from xsp.machine.peak import measured; print(measured(int(sys.argv[1])))"


class MachinePeak(msgspec.Struct, frozen=True):
    """Peak rates of a machine with a number of threads.

    Attributes:
        threads: How many threads worked.
        flops_per_s: Operations per second of a product of float32 matrices.
        bytes_per_s: Bytes read and written per second by a copy.
        by: What computed, with its version: `torch 2.9.1`.
        cpu: Name of the processor.
    """

    threads: int
    flops_per_s: float
    bytes_per_s: float
    by: str
    cpu: str = ""


def kept_peaks(host_id: str) -> list[MachinePeak]:
    """Return the peaks that were measured on a machine, with fewest threads first; empty if none.

    Args:
        host_id: The machine, as in a trace's environment.
    """
    return sorted(_all().get(host_id, ()), key=lambda peak: peak.threads)


def keep_peaks(host_id: str, peaks: Sequence[MachinePeak]) -> None:
    """Keep the peaks of a machine instead of those that were kept of it.

    Raises:
        ExportError: The file cannot be written.
    """
    path = _path()
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(_all() | {host_id: list(peaks)})))


def measure_peaks(
    cpu: str, threads: Sequence[int], progress: Callable[[str], None]
) -> list[MachinePeak]:
    """Return the peak of this machine with each number of threads. Takes some 8 s for each.

    Each is measured in a process of its own, as libraries read their number of threads when they
    are loaded.

    Args:
        cpu: Name of the processor.
        threads: Numbers of threads.
        progress: Called with what is measured next.

    Raises:
        MeasurementError: A process failed.
    """
    found = []
    for number in threads:
        progress(f"a matrix product and a copy with {counted(number, 'thread')}")
        environment = os.environ | dict.fromkeys(_THREADS, str(number))
        command = [sys.executable, "-c", _PROGRAM, str(number)]
        answer = subprocess.run(
            command, capture_output=True, text=True, env=environment, check=False
        )
        if answer.returncode:
            last = (answer.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise MeasurementError(f"the peak could not be measured with {number} threads: {last}")
        apart = msgspec.json.decode(answer.stdout, type=MachinePeak)
        found.append(msgspec.structs.replace(apart, cpu=cpu))
    return found


def measured(threads: int) -> str:
    """Return the peak of this process with some threads: a `MachinePeak` as JSON."""
    torch = importlib.util.find_spec("torch") is not None
    product, copy, by = _with_torch(threads) if torch else _with_numpy(threads)
    flops = 2 * _ROWS**3 / _best_seconds(product)
    peak = MachinePeak(threads, flops, 2 * _COPIED / _best_seconds(copy), by)
    return msgspec.json.encode(peak).decode()


def _best_seconds(work: Callable[[], object]) -> float:
    """Return the shortest of some calls, at least three, after one to warm up."""
    work()
    best, end, calls = float("inf"), time.perf_counter() + _SECONDS, 0
    while calls < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
        calls += 1
    return best


_Work = tuple[Callable[[], object], Callable[[], object], str]


def _with_torch(threads: int) -> _Work:
    import torch  # noqa: PLC0415  # slow to import

    torch.set_num_threads(threads)
    left, right = torch.rand(_ROWS, _ROWS), torch.rand(_ROWS, _ROWS)
    product = torch.empty(_ROWS, _ROWS)
    source, target = torch.rand(_COPIED // 4), torch.zeros(_COPIED // 4)
    return (
        lambda: torch.mm(left, right, out=product),
        lambda: target.copy_(source),
        f"torch {torch.__version__}",
    )


def _with_numpy(threads: int) -> _Work:
    import numpy as np  # noqa: PLC0415  # slow to import

    random = np.random.default_rng(0)
    left, right = (random.random((_ROWS, _ROWS), np.float32) for _ in range(2))
    product = np.empty_like(left)
    source, target = random.random(_COPIED // 4, np.float32), np.zeros(_COPIED // 4, np.float32)
    sources, targets = np.array_split(source, threads), np.array_split(target, threads)
    pool = ThreadPoolExecutor(threads)  # numpy copies with one thread, and lets others run
    return (
        lambda: np.matmul(left, right, out=product),
        lambda: list(pool.map(np.copyto, targets, sources)),
        f"numpy {np.__version__}",
    )


def _all() -> dict[str, list[MachinePeak]]:
    """Return all that is kept; nothing where the file is damaged, which measuring anew mends."""
    try:
        return msgspec.json.decode(_path().read_bytes(), type=dict[str, list[MachinePeak]])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return {}


def _path() -> Path:
    return state_folder() / "peak.json"
