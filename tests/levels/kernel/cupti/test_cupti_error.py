from __future__ import annotations

import pytest
from fake_cupti import cuptiError

from xsp_levels.kernel.cupti.error import explain


@pytest.mark.parametrize(
    ("status", "word"),
    [
        (39, "torch.profiler"),
        (39, "PyTorch before 2.15 holds CUPTI for as long as the process lives"),
        (39, "xsp profile"),
        (35, "NVreg_RestrictProfilingToAdminUsers"),
        (14, "another profiler"),
        (15, "nvidia-smi"),
        (15, "older than this CUPTI"),
        (26, "DCGM"),
        (34, "compiler"),
        (38, "7.5 and newer"),
        (46, "chip"),
        (47, "MPS"),
        (33, "virtual"),
        (40, "virtual"),
        (43, "MIG"),
    ],
)
def test_each_known_failure_is_said_with_its_remedy(status: int, word: str) -> None:
    sentence = explain(cuptiError(status))
    assert word in sentence
    assert "\n" not in sentence


def test_numbers_are_those_of_the_real_cupti() -> None:
    cupti = pytest.importorskip("cupti.cupti", reason="needs cupti-python: make .venv/.cupti")
    names = {
        "ERROR_OUT_OF_MEMORY": 8,
        "ERROR_NOT_COMPATIBLE": 14,
        "ERROR_NOT_INITIALIZED": 15,
        "ERROR_INVALID_KIND": 21,
        "ERROR_HARDWARE_BUSY": 26,
        "ERROR_NOT_SUPPORTED": 27,
        "ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED": 33,
        "ERROR_CUDA_COMPILER_NOT_COMPATIBLE": 34,
        "ERROR_INSUFFICIENT_PRIVILEGES": 35,
        "ERROR_OLD_PROFILER_API_INITIALIZED": 36,
        "ERROR_LEGACY_PROFILER_NOT_SUPPORTED": 38,
        "ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED": 39,
        "ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES": 40,
        "ERROR_CONFIDENTIAL_COMPUTING_NOT_SUPPORTED": 41,
        "ERROR_CMP_DEVICE_NOT_SUPPORTED": 42,
        "ERROR_MIG_DEVICE_NOT_SUPPORTED": 43,
        "ERROR_SLI_DEVICE_NOT_SUPPORTED": 44,
        "ERROR_WSL_DEVICE_NOT_SUPPORTED": 45,
        "ERROR_INVALID_CHIP_NAME": 46,
        "ERROR_HES_TRACE_NOT_SUPPORTED_ON_MPS": 47,
    }
    assert {name: int(getattr(cupti.Result, name)) for name in names} == names
