"""Roofs: a trace in, the most that its device computes and moves in a second out."""

from __future__ import annotations

from dataclasses import dataclass

from xsp.trace import Trace


@dataclass(frozen=True, slots=True)
class Roof:
    """The most that a device can do.

    Attributes:
        flops_per_s: Floating-point operations per second.
        bytes_per_s: Bytes per second from and to its memory.
        source: Where the two numbers are from.
    """

    flops_per_s: float
    bytes_per_s: float
    source: str

    @property
    def ideal_flops_per_byte(self) -> float:
        """Arithmetic intensity below which memory is the limit (paper, section III-D3)."""
        return self.flops_per_s / self.bytes_per_s


def roof_of(trace: Trace, device: int | None = None) -> Roof | None:
    """Return the roof of a trace's device; None where nothing is known of the device.

    Args:
        trace: A trace.
        device: Number of a device, as in `trace.spans`; None for the one that worked most, or for
            the host where no device worked.
    """
    return None
