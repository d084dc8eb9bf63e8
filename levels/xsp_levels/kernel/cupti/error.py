"""An error of CUPTI in; a sentence that says the cause and a remedy out. Pure."""

from __future__ import annotations

_OTHERS = (
    "another profiler holds CUPTI, which serves one at a time in a process; end torch.profiler, "
    "or start the program without Nsight Systems, Nsight Compute, cuda-gdb or compute-sanitizer"
)
_PRIVILEGES = (
    "NVIDIA's driver lets only administrators profile here; load the kernel module with "
    "NVreg_RestrictProfilingToAdminUsers=0, run as root, or give the container CAP_SYS_ADMIN"
)
_DRIVER = (
    "the NVIDIA driver and this CUPTI do not go together, mostly because the driver is the older; "
    "update the driver, or install the cupti-python for the CUDA that nvidia-smi shows"
)
_DEVICE = (
    "CUPTI cannot profile this kind of device: {what}; use one that it can, or leave level 4 out"
)

# By the numbers of CUptiResult in cupti_result.h, which never change.
_SENTENCES = {
    8: "CUPTI found no memory for its records; free some on the host and on the device",
    14: _DRIVER,
    15: (
        "CUPTI could not initialize: there is no NVIDIA driver that works here; check nvidia-smi, "
        "and in a container pass the GPU on (--gpus all)"
    ),
    27: "CUPTI does not support what was asked of it on this system; update the driver",
    33: _DEVICE.format(what="a virtual GPU whose host forbids it"),
    34: _DRIVER,
    35: _PRIVILEGES,
    36: "an older profiling interface of CUPTI is in use in this process; end that profiler",
    38: _DEVICE.format(what="it is older than compute capability 7.5"),
    39: _OTHERS,
    40: "the virtual GPU does not allow profiling; ask for it to be enabled for this machine",
    41: _DEVICE.format(what="it runs in confidential-computing mode"),
    42: _DEVICE.format(what="a mining processor"),
    43: _DEVICE.format(what="a MIG instance, with this driver"),
    44: _DEVICE.format(what="it is in SLI mode"),
    45: _DEVICE.format(what="WSL, with this driver"),
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
