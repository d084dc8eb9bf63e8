from __future__ import annotations

import os
import subprocess
import sys

import pytest

from xsp_levels.native.stderr_filter import vendor_silenced

KINETO = b"USDT:2026-11-20 22:20:50 6660:6660 SyncActivityProfilerHandler.cpp:39] profiler_start\n"
DEVICE = b"ERROR:2026-11-20 22:20:50 1:1 DeviceProperties.cpp:56] gpuGetDeviceCount failed\n"
THREAD = b"ERROR: External init callback must run in same thread as registerClient (-16 != 14)\n"
MEMORY = b"[W1120 22:26:14.355984204 CPUAllocator.cpp:245] Memory block of unknown size was x\n"


@pytest.mark.parametrize("line", [KINETO, DEVICE, THREAD, MEMORY])
def test_vendor_line_does_not_reach_the_user(
    line: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    with vendor_silenced():
        os.write(2, line)
    assert capfd.readouterr().err == ""


def test_what_others_write_arrives_unchanged(capfd: pytest.CaptureFixture[str]) -> None:
    os.write(2, b"before ")
    with vendor_silenced():
        os.write(2, b"ERROR: my own\nloss 0.5" + KINETO + b"\rloss 0.4\n\n" + DEVICE + b"end")
    os.write(2, b" after")
    assert capfd.readouterr().err == "before ERROR: my own\nloss 0.5\rloss 0.4\n\nend after"


def test_descriptor_is_restored_when_the_block_raises() -> None:
    before = os.fstat(2)

    def interrupted() -> None:
        with vendor_silenced():
            assert not os.path.samestat(os.fstat(2), before)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert os.path.samestat(os.fstat(2), before)


def run(script: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, timeout=60, check=False
    )


@pytest.mark.forks
def test_child_forked_inside_the_block_writes_to_the_real_descriptor() -> None:
    result = run("""
import os
from xsp_levels.native.stderr_filter import vendor_silenced
with vendor_silenced():
    pid = os.fork()
    if pid == 0:
        os.write(2, b"child ")
        with vendor_silenced():
            os.write(2, b"again ")
        os._exit(0)
    os.waitpid(pid, 0)
os.write(2, b"parent")
""")
    assert result.stderr == b"child again parent"
