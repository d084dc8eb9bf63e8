"""Explains an error of CUPTI in a sentence with the cause and a remedy. Pure."""

from __future__ import annotations

_OTHERS = (
    "another profiler holds CUPTI, which serves one at a time in a process; end torch.profiler "
    "(PyTorch before 2.15 holds CUPTI for as long as the process lives, once its profiler has "
    "run, for xsp's operators without level 4, too: update PyTorch, begin with level 4, or "
    "measure with `xsp profile`, in whose processes it does not), or start the program without "
    "Nsight Systems, Nsight Compute, cuda-gdb or compute-sanitizer"
)
_PRIVILEGES = (
    "NVIDIA's driver lets only administrators profile here; load the kernel module with "
    "NVreg_RestrictProfilingToAdminUsers=0, run as root, or give the container CAP_SYS_ADMIN"
)
_STATE = (
    "another profiler in this process uses CUPTI's newer interface, beside which the one that xsp "
    "uses answers to nobody; end that profiler, and measure in a fresh process"
)
_DRIVER = (
    "CUPTI could not initialize: the NVIDIA driver is older than this CUPTI, or none works here; "
    "check nvidia-smi, then update the driver, or install the cupti-python for the CUDA that "
    "nvidia-smi shows; in a container pass the GPU on (--gpus all)"
)
_DEVICE = (
    "CUPTI cannot profile this kind of device: {what}; use one that it can, or leave level 4 out"
)

TAKEN = 39  # CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED

# By the numbers of CUptiResult in cupti_result.h, which never change.
_SENTENCES = {
    8: "CUPTI found no memory for its records; free some on the host and on the device",
    14: _STATE,
    15: _DRIVER,
    26: (
        "the device's counters are in use by another program, such as DCGM or Nsight Compute; end "
        "it, or pause it (`dcgmi profmon --pause`)"
    ),
    27: "CUPTI does not support what was asked of it on this system; update the driver",
    33: _DEVICE.format(what="a virtual GPU whose host forbids it"),
    34: (
        "the program was compiled by a CUDA compiler that this CUPTI cannot follow on devices of "
        "compute capability 6; compile it with CUDA 9 or later"
    ),
    35: _PRIVILEGES,
    36: "an older profiling interface of CUPTI is in use in this process; end that profiler",
    38: (
        "a profiler in this process asks for CUPTI's events and metrics of old, which devices of "
        "compute capability 7.5 and newer do not have; end that profiler"
    ),
    TAKEN: _OTHERS,
    40: "the virtual GPU does not allow profiling; ask for it to be enabled for this machine",
    41: _DEVICE.format(what="it runs in confidential-computing mode"),
    42: _DEVICE.format(what="a mining processor"),
    43: _DEVICE.format(what="a MIG instance, with this driver"),
    44: _DEVICE.format(what="it is in SLI mode"),
    45: _DEVICE.format(what="WSL, with this driver"),
    46: "CUPTI does not know a chip of that name; update cupti-python",
    47: "CUPTI cannot trace by hardware under MPS; end the MPS server, or leave that out",
}
_BROKEN = (
    "CUPTI failed ({what}); run `xsp doctor`, and tell the project if driver and cupti-python "
    "are of the same CUDA"
)


def explain(error: BaseException) -> str:
    """Return one sentence on an error that cupti-python raised.

    Args:
        error: A `cuptiError`, which carries the code as `status`, or any other exception.
    """
    status = getattr(error, "status", None)
    sentence = explain_code(status) if isinstance(status, int) else None
    return sentence or _BROKEN.format(what=str(error) or type(error).__name__)


def explain_code(code: int) -> str | None:
    """Return one sentence on a `CUptiResult`, None for a code without a sentence here.

    >>> explain_code(0) is None
    True
    """
    return _SENTENCES.get(int(code))
