"""Computes the theoretical occupancy of launches on a device, in percent. Pure.

The formula is that of `cudaOccMaxActiveBlocksPerMultiprocessor` in NVIDIA's
`cuda_occupancy.h` (CUDA 13.2), which the CUDA Occupancy Calculator uses as well,
without partitioned global caching, and with the carve-out of shared memory that the launch
ran with, where CUPTI tells the carve-out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]

_WARP = 32
_REGISTER_UNIT = 256  # registers are allocated to a warp in multiples of this
_PARTITIONS = {(6, 0): 2}  # of a multiprocessor; 4 on all others since Maxwell
_RESERVED_SHARED = 1024  # bytes per block that the driver keeps, since compute capability 8.0


@dataclass(frozen=True, slots=True)
class Device:
    """Resources of one multiprocessor of a device.

    Attributes:
        capability: Compute capability.
        warps: Most resident warps.
        blocks: Most resident blocks.
        registers: Number of 32-bit registers.
        shared_bytes: Shared memory.
    """

    capability: tuple[int, int]
    warps: int
    blocks: int
    registers: int
    shared_bytes: int

    @property
    def known(self) -> bool:
        """Whether the formula holds for the device."""
        limits = (self.warps, self.blocks, self.registers, self.shared_bytes)
        return 5 <= self.capability[0] <= 12 and min(limits) > 0


@dataclass(frozen=True, slots=True)
class Launches:
    """Resources that n launches take.

    Attributes:
        threads: Threads per block.
        registers: Registers per thread.
        shared_bytes: Shared memory per block, static and dynamic.
        carved_bytes: Carve-out of shared memory per multiprocessor; 0: unknown.
    """

    threads: Integers
    registers: Integers
    shared_bytes: Integers
    carved_bytes: Integers


def occupancy_pct(device: Device, launches: Launches) -> npt.NDArray[np.float64]:
    """Return the resident warps per multiprocessor, in percent of the device's most.

    >>> hopper = Device((9, 0), warps=64, blocks=32, registers=65536, shared_bytes=233472)
    >>> one = Launches(*(np.array([value]) for value in (256, 64, 0, 0)))
    >>> occupancy_pct(hopper, one).tolist()
    [50.0]
    """
    warps = np.maximum(1, -(-launches.threads // _WARP))
    blocks = np.minimum(device.blocks, device.warps // warps)
    per_warp = _round_up(np.maximum(1, launches.registers * _WARP), _REGISTER_UNIT)
    partitions = _PARTITIONS.get(device.capability, 4)
    room = (device.registers // partitions) // per_warp * partitions
    by_registers = np.where(launches.registers > 0, room // warps, device.blocks)
    blocks = np.minimum(blocks, by_registers)
    blocks = np.minimum(blocks, _by_shared(device, launches))
    return 100.0 * blocks * warps / device.warps


def _by_shared(device: Device, launches: Launches) -> Integers:
    reserved = _RESERVED_SHARED if device.capability[0] >= 8 else 0
    unit = 128 if device.capability[0] >= 8 else 256
    per_block = _round_up(launches.shared_bytes + reserved, unit)
    carved = np.where(launches.carved_bytes > 0, launches.carved_bytes, device.shared_bytes)
    # A launch that needs more than was carved out gets what the device has.
    room = np.where(carved >= per_block, carved, device.shared_bytes)
    return np.where(per_block > 0, room // np.maximum(per_block, 1), device.blocks)


def _round_up(value: Integers, unit: int) -> Integers:
    return -(-value // unit) * unit
