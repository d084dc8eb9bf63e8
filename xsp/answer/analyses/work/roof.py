"""Finds the roof of a trace's device: its peak operations and bytes per second."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np
import polars as pl

from xsp.answer.analyses.kept import once_per_trace
from xsp.answer.analyses.tree import Tree
from xsp.answer.analyses.work.formula import FORMULAS
from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.machine import kept_peaks
from xsp.text import counted
from xsp.trace import Trace

_HALF = ("float16", "bfloat16")
_TEXTS = pl.List(pl.String)


@dataclass(frozen=True, slots=True)
class Roof:
    """The most that a device can do.

    Attributes:
        flops_per_s: Floating-point operations per second.
        bytes_per_s: Bytes per second from and to its memory.
        source: Which device, which of its rates, and where the two numbers are from.
    """

    flops_per_s: float
    bytes_per_s: float
    source: str

    @property
    def ideal_flops_per_byte(self) -> float:
        """Arithmetic intensity below which memory is the limit (paper, section III-D3).

        >>> round(Roof(15.7e12, 900e9, "Tesla V100").ideal_flops_per_byte, 2)
        17.44
        """
        return self.flops_per_s / self.bytes_per_s


def with_peak(
    trace: Trace, *, flops_per_s: float | None = None, bytes_per_s: float | None = None
) -> Trace:
    """Return a trace that is measured against a peak of your own, and not that of a data sheet.

    Example:
        The place of each operator below the roof of a GPU at a lower clock::

            slow = xsp.analyses.with_peak(trace, flops_per_s=800e12, bytes_per_s=3e12)
            xsp.analyses.operator_roofline(slow)

    Args:
        trace: Any trace.
        flops_per_s: Most operations per second; None: what is known of the device.
        bytes_per_s: Most bytes per second from and to its memory; None likewise.

    Raises:
        ValueError: A rate is not above 0.
    """
    rates = {"flops_per_s": flops_per_s, "bytes_per_s": bytes_per_s}
    given = {name: rate for name, rate in rates.items() if rate is not None}
    for name, rate in given.items():
        if not (rate > 0 and math.isfinite(rate)):
            raise ValueError(f"A peak is above 0 ({name}={rate:g}). Give a rate per second.")
    return trace.replaced(metadata={**trace.metadata, "peak": given})


def roof_of(trace: Trace, device: int | None = None) -> Roof | None:
    """Return the roof of a trace's device; None where nothing is known of the device.

    What `with_peak` says comes first. Of a device it is the vendor's peak, in the precision in
    which the trace mostly multiplies: of single precision without tensor cores unless operators
    work on half precision, or kernels' names say TensorFloat-32. Of a host it is what
    `xsp doctor --peak` measured on that machine, with as many threads as the trace's operators
    used (one, or all).

    Args:
        trace: A trace.
        device: Number of a device, as in `trace.spans`; None for the one that worked longest, or
            for the host where no device worked.
    """
    known, given = _known_roof(trace, device), trace.metadata.get("peak") or {}
    if not given:
        return known
    flops, moved = (
        given.get(name) or (None if known is None else getattr(known, name))
        for name in ("flops_per_s", "bytes_per_s")
    )
    if flops is None or moved is None:
        return None
    source = "given" if len(given) == 2 or known is None else f"given, else {known.source}"
    return Roof(float(flops), float(moved), source)


def _known_roof(trace: Trace, device: int | None) -> Roof | None:
    tree = Tree.of(trace)
    if device is None:
        device = _busiest(tree)
    environment = trace.metadata.get("environment") or {}
    if device is None and not tree.is_of(Kind.LAUNCH).any():
        # The best of what was measured on the trace's machine with as many threads or fewer.
        # Fewer may be quicker: where threads share caches, and where other programs ran.
        kept = kept_peaks(str(environment.get("host_id")))
        threads = (environment.get("threads") or {}).get("operators") or math.inf
        usable = [found for found in kept if found.threads <= threads]
        if not usable:
            return None
        flops, moved = max(p.flops_per_s for p in usable), max(p.bytes_per_s for p in usable)
        most = counted(usable[-1].threads, "thread")
        return Roof(flops, moved, f"{usable[-1].cpu}, {most}: measured by xsp doctor --peak")
    # The name of a device, where the trace says it or all devices have the same.
    names = list(environment.get("devices") or ())
    names = names or [gpu["name"] for gpu in environment.get("gpus") or ()]
    name: str | None = None
    if len(set(names)) == 1:
        name = str(names[0])
    elif device is not None and 0 <= device < len(names):
        name = str(names[device])
    found = peak_of(name) if name is not None else None
    return None if found is None or name is None else _roof(tree, name, found)


@once_per_trace
def _busiest(tree: Tree) -> int | None:
    """Return the device that worked longest, None where none did."""
    work = tree.spans.select("device", "latency_ns").filter(
        pl.Series(tree.is_of(*DEVICE_ACTIVITIES))
    )
    sums = work.group_by("device", maintain_order=True).agg(pl.col("latency_ns").sum())
    return (
        sums.sort("latency_ns", maintain_order=True)["device"].to_list()[-1]
        if work.height
        else None
    )


def _roof(tree: Tree, name: str, found: Peak) -> Roof:
    if found.half is not None and _multiplies_in_half(tree):
        rate, words = found.half, "half precision"
    elif found.tensor is not None and _has_tf32(tree):
        rate, words = found.tensor, "TensorFloat-32"
    else:
        rate, words = found.single, "single precision"
    return Roof(rate, found.bytes_per_s, f"{name}, {words}: data sheet")


@once_per_trace
def _multiplies_in_half(tree: Tree) -> bool:
    """Return whether most operators that multiply matrices or convolve are given half precision."""
    multiplying = tree.spans["name"].is_in(list(FORMULAS))
    types = tree.attribute("input_dtypes", _TEXTS).filter(multiplying).list.first().drop_nulls()
    return int(types.is_in(_HALF).sum()) > len(types) / 2


@once_per_trace
def _has_tf32(tree: Tree) -> bool:
    rows = np.flatnonzero(tree.is_of(Kind.KERNEL))
    return bool(tree.spans["name"][rows].str.contains("tf32").any())


# Lists peak rates of devices from their vendors' data sheets.


@dataclass(frozen=True, slots=True)
class Peak:
    """Peak rates of a device.

    Attributes:
        single: Operations per second in single precision (float32), without tensor cores.
        tensor: Those of its tensor or matrix cores with TensorFloat-32; None: it has none such.
        half: Those with float16 or bfloat16, by tensor or matrix cores where it has them; None
            where half precision is no faster than single.
        bytes_per_s: Bytes per second from and to the device's memory.
    """

    single: float
    tensor: float | None
    half: float | None
    bytes_per_s: float


def peak_of(device: str) -> Peak | None:
    """Return the peak of a device by the name that its driver gives it; None for an unknown one.

    >>> peak_of("Tesla V100-SXM2-16GB").bytes_per_s / 1e9
    900.0
    >>> peak_of("Some GPU")
    """
    found = next((peak for pattern, peak in _PEAKS if re.search(pattern, device)), None)
    if found is None:
        return None
    single, tensor, half, gigabytes = found
    tera = [None if rate is None else rate * 1e12 for rate in (tensor, half)]
    return Peak(single * 1e12, tera[0], tera[1], gigabytes * 1e9)


# Tera-operations per second (single, TensorFloat-32, half precision), and GB per second.
# The first pattern found in the name counts, so that narrower ones come first.
_PEAKS: tuple[tuple[str, tuple[float, float | None, float | None, float]], ...] = (
    # Maxwell, Pascal
    (r"\bM60\b", (4.8, None, None, 160)),
    (r"\bP100-PCIE-12GB", (9.3, None, 18.7, 549)),
    (r"\bP100-PCIE", (9.3, None, 18.7, 732)),
    (r"\bP100-SXM2", (10.6, None, 21.2, 732)),
    (r"\bP40\b", (12.0, None, None, 346)),
    (r"\bP4\b", (5.5, None, None, 192)),
    # Volta, Turing
    (r"\bV100S", (16.4, None, 130.0, 1134)),
    (r"\bV100-PCIE", (14.0, None, 112.0, 900)),
    (r"\bV100", (15.7, None, 125.0, 900)),
    (r"\bT4\b", (8.1, None, 65.0, 320)),
    (r"Quadro RTX 6000", (16.3, None, 130.5, 672)),
    (r"Quadro RTX 8000", (16.3, None, 130.5, 672)),
    # Ampere; PG509 is the board of the A100-SXM4-40GB
    (r"A100-SXM\d?-80GB", (19.5, 156.0, 312.0, 2039)),
    (r"A100[- ]80GB[- ]PCIe", (19.5, 156.0, 312.0, 1935)),
    (r"\bA100", (19.5, 156.0, 312.0, 1555)),
    (r"\bA40\b", (37.4, 74.8, 149.7, 696)),
    (r"\bA30\b", (10.3, 82.0, 165.0, 933)),
    (r"\bA10\b", (31.2, 62.5, 125.0, 600)),
    (r"\bRTX A6000", (38.7, 77.4, 154.8, 768)),
    # Ada
    (r"\bL40S\b", (91.6, 183.0, 362.0, 864)),
    (r"\bL4\b", (30.3, 60.0, 121.0, 300)),
    (r"RTX 4090\b", (82.6, 82.6, 165.2, 1008)),
    # Hopper, Blackwell
    (r"\bH100 PCIe", (51.0, 378.0, 756.0, 2000)),
    (r"\bH100 NVL", (60.0, 417.5, 835.5, 3900)),
    (r"\bH100", (66.9, 494.7, 989.4, 3350)),
    (r"\bH200 NVL", (60.0, 417.5, 835.5, 4800)),
    (r"\bH200", (66.9, 494.7, 989.4, 4800)),
    (r"\bGH200", (66.9, 494.7, 989.4, 4000)),
    (r"\bB200", (80.0, 1100.0, 2250.0, 8000)),
    (r"\bGB200", (90.0, 1250.0, 2500.0, 8000)),
    # AMD: single precision is that of vectors
    (r"\bMI100\b", (23.1, None, 184.6, 1229)),
    (r"\bMI210\b", (22.6, None, 181.0, 1638)),
    (r"\bMI250X", (23.9, None, 191.5, 1638)),
    (r"\bMI250\b", (22.6, None, 181.0, 1638)),
    (r"\bMI300X", (163.4, 653.7, 1307.4, 5325)),
    (r"\bMI300A", (122.6, 490.3, 980.6, 5325)),
    (r"\bMI325X", (163.4, 653.7, 1307.4, 6000)),
    (r"\bMI350X", (144.2, None, 2306.9, 8000)),
    (r"\bMI355X", (157.3, None, 2516.6, 8000)),
)
