"""Runs a program under Nsight Compute's command line, `ncu`, and says why `ncu` refused."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from xsp.errors import MeasurementError, TraceFormatError
from xsp.measuring.target import end_process, ending_of
from xsp.reading.importers import KernelMetrics, Source, contents_of
from xsp.text import printable

_OPERATIONS = ",".join(
    f"smsp__sass_thread_inst_executed_op_{width}{name}_pred_on.sum"
    for width in "dfh"
    for name in ("add", "mul", "fma")
)
# What is counted, by the name of the set. Sections are files of ncu's own, for any chip; names of
# tensor counters differ from chip to chip, so a pattern asks for them.
SETS: Mapping[str, Sequence[str]] = {
    "roofline": (
        "--section", "SpeedOfLight", "--section", "Occupancy", "--section", "LaunchStats",
        "--metrics",
        "gpu__time_duration.sum,dram__bytes_read.sum,dram__bytes_write.sum,"
        f"{_OPERATIONS},regex:sm__ops_path_tensor_src_[a-z0-9_]+\\.sum$",
    ),
    "memory": (
        "--section", "SpeedOfLight", "--section", "MemoryWorkloadAnalysis",
        "--section", "LaunchStats", "--metrics",
        "gpu__time_duration.sum,dram__bytes_read.sum,dram__bytes_write.sum",
    ),
    "scheduler": (
        "--section", "SchedulerStats", "--section", "WarpStateStats", "--section", "Occupancy",
        "--section", "LaunchStats", "--metrics", "gpu__time_duration.sum",
    ),
}  # fmt: skip

# What ncu prints when it refuses, and what to do about it.
_REFUSALS = (
    (
        r"ERR_NVGPUCTRPERM|permission to access NVIDIA GPU Performance Counters",
        "The driver keeps counters for administrators (ERR_NVGPUCTRPERM). Run as root or with "
        "CAP_PERFMON, or load nvidia with NVreg_RestrictProfilingToAdminUsers=0.",
    ),
    (
        r"driver resource was unavailable|another (tool|client)|ERR_RESOURCE_BUSY",
        "Another tool holds the GPU's counters (DCGM, or a second profiler). Stop it: dcgmi "
        "profdiag pause, or end the other profiler.",
    ),
    (
        r"Failed to find metric|[Uu]nknown metric|[Ff]ailed to find section|[Uu]nknown section",
        "This ncu lacks what xsp asks for. Use another --metrics, or a newer Nsight Compute.",
    ),
    (
        r"not supported on this device|[Uu]nsupported (GPU|device)|ERR_UNSUPPORTED_GPU",
        "Nsight Compute does not support this GPU. It needs Volta or newer, without vGPU.",
    ),
    (
        r"No kernels were profiled",
        "The program launched none of the chosen kernels. Run the program of the trace, on the "
        "same GPU.",
    ),
)
_MOST_LINES, _LONGEST = 5, 200  # lines of ncu's own words in an error, and their characters


def command(
    kernels: Sequence[str],
    launches: int,
    program: Sequence[str],
    *,
    counters: str = "roofline",
    marked: bool = False,
) -> list[str]:
    """Build the command line by which `ncu` counts events of a few kernels.

    Args:
        kernels: Short names, as functions have them in the source.
        launches: Most launches to count; then `ncu` ends the program.
        program: The program and its arguments.
        counters: One of `SETS`.
        marked: Whether the program marks the part to count, by `cudaProfilerStart` and `Stop`.

    Raises:
        ValueError: There is no such set, or no kernel is given.
    """
    if counters not in SETS:
        raise ValueError(f"Unknown set of counters ({counters!r}). Use one of {', '.join(SETS)}.")
    if not kernels:
        raise ValueError("No kernel is chosen. Raise --top or --until.")
    names = "|".join(re.escape(name) for name in kernels)
    return [
        "ncu", "--csv", "--page", "raw", "--print-units", "base",
        "--target-processes", "all", "--replay-mode", "kernel", "--clock-control", "none",
        *(("--profile-from-start", "off") if marked else ()),
        "--kernel-name-base", "function", "--kernel-name", f"regex:^({names})$",
        "--launch-count", str(launches), *(() if marked else ("--kill", "yes")),
        *SETS[counters], *program,
    ]  # fmt: skip


def run(line: Sequence[str], limit_s: float) -> KernelMetrics:
    """Run a command line of `command`, and read what `ncu` counted.

    An error shows the last lines that `ncu` and the program printed.

    Args:
        line: What `command` built.
        limit_s: Seconds after which `ncu` and the program are ended.

    Raises:
        MeasurementError: There is no `ncu`, `ncu` refused, the program failed, or neither ended in
            time.
    """
    program = shutil.which(line[0])
    if program is None:
        raise MeasurementError(
            f"Nsight Compute is not installed ({line[0]} is not on the PATH). Install it with the "
            "CUDA toolkit, or run the command on the machine that has it."
        )
    with tempfile.TemporaryDirectory(prefix="xsp-counters-") as scratch:
        table, errors = Path(scratch) / "ncu.csv", Path(scratch) / "errors.txt"
        with table.open("wb") as output, errors.open("wb") as said:
            process = subprocess.Popen(
                [program, *line[1:]],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=said,
                env={**os.environ, "LC_ALL": "C"},  # the numbers of the table are in that language
                start_new_session=True,
            )
            try:
                code = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                raise MeasurementError(
                    f"Nsight Compute did not end within {limit_s:g} s. Raise --limit, or choose "
                    "fewer kernels with --top."
                ) from None
            finally:
                if process.poll() is None:
                    end_process(process)
        text = table.read_text("utf-8", "replace") + errors.read_text("utf-8", "replace")
        for pattern, why in _REFUSALS:
            if re.search(pattern, text):
                raise MeasurementError(why)
        lines = [printable(line)[:_LONGEST] for line in text.strip().splitlines()]
        last = "\n".join(lines[-_MOST_LINES:]) or "it printed nothing"
        if code and "--kill" not in line:  # with it ncu ends the program by a signal
            raise MeasurementError(f"The program under Nsight Compute {ending_of(code)}:\n{last}")
        try:
            contents, _ = contents_of(Source(table))
        except TraceFormatError:
            contents = ()
    for metrics in contents:
        if isinstance(metrics, KernelMetrics):
            return metrics
    raise MeasurementError(f"Nsight Compute {ending_of(code)} without a table:\n{last}")
