"""Runs one step of a target between `cudaProfilerStart` and `cudaProfilerStop`, after warm-up.

`python -m xsp.measuring.target.single_step JOB` is the program that Nsight Compute watches.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from xsp.errors import MeasurementError
from xsp.measuring.target.resolution import resolve
from xsp.measuring.target.spec import Spec

_WARMUP = 3  # steps: kernels are chosen by timing in the first two (cuDNN, torch.compile)


def program(spec: Spec, folder: Path) -> list[str]:
    """Write a job, and build the command line that runs it.

    Args:
        spec: The target; no script.
        folder: Folder for the job.
    """
    job = folder / "step.json"
    job.write_text(json.dumps(spec.to_json()), encoding="utf-8")
    # -P: a torch.py in the working directory must not be imported instead of PyTorch.
    return [sys.executable, "-P", "-m", "xsp.measuring.target.single_step", str(job)]


def run_marked(spec: Spec, driver: Any) -> None:
    """Warm a target up, and run one step that the driver's profiler calls enclose.

    Args:
        spec: The target.
        driver: The library of the CUDA driver, or what stands for it.

    Raises:
        MeasurementError: The driver refuses.
    """
    subject = resolve(spec)
    with subject.mode():
        for _ in range(_WARMUP):
            subject.function(*subject.args, **subject.kwargs)
        for call in (driver.cuCtxSynchronize, driver.cuProfilerStart):
            _check(call)
        result = subject.function(*subject.args, **subject.kwargs)
        if hasattr(result, "block_until_ready"):
            result.block_until_ready()
        for call in (driver.cuCtxSynchronize, driver.cuProfilerStop):
            _check(call)


def _check(call: Callable[[], int]) -> None:
    if code := call():
        raise MeasurementError(
            f"The CUDA driver refused {getattr(call, '__name__', 'a call')} (error {code}). Run "
            "the target on a GPU: --device cuda."
        )


if __name__ == "__main__":
    run_marked(
        Spec.from_json(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))),
        ctypes.CDLL("libcuda.so.1"),
    )
