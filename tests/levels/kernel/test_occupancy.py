from __future__ import annotations

import numpy as np
import pytest

from xsp_levels.kernel.occupancy import Device, Launches, occupancy_pct

A100 = Device((8, 0), warps=64, blocks=32, registers=65536, shared_bytes=167936)
T4 = Device((7, 5), warps=32, blocks=16, registers=65536, shared_bytes=65536)


def occupancy(device: Device, threads: int, registers: int, shared: int, carved: int = 0) -> float:
    columns = [np.array([value], np.int64) for value in (threads, registers, shared, carved)]
    return float(occupancy_pct(device, Launches(*columns))[0])


# Worked out by hand with the steps of cuda_occupancy.h.
@pytest.mark.parametrize(
    ("device", "threads", "registers", "shared", "expected"),
    [
        (A100, 256, 32, 0, 100.0),
        (A100, 256, 40, 0, 75.0),  # 1,280 per warp: 12 warps a partition, 48 in all: 6 blocks
        (A100, 32, 16, 0, 50.0),  # 32 blocks of one warp are the most
        (A100, 128, 16, 49152, 18.75),  # 50,176 with what the driver keeps: 3 blocks of 4 warps
        (A100, 1024, 65, 0, 0.0),  # 26 warps have room, a block needs 32
        (T4, 256, 64, 0, 100.0),
        (T4, 64, 16, 0, 100.0),
    ],
)
def test_occupancy_is_that_of_the_calculator(
    device: Device, threads: int, registers: int, shared: int, expected: float
) -> None:
    assert occupancy(device, threads, registers, shared) == pytest.approx(expected)


def test_shared_memory_that_was_carved_out_limits_unless_it_is_too_small() -> None:
    assert occupancy(A100, 128, 16, 8192, carved=102400) == pytest.approx(68.75)
    assert occupancy(A100, 128, 16, 49152, carved=8192) == occupancy(A100, 128, 16, 49152)
