"""Roofs: a trace in, the most that its device computes and moves in a second out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from xsp.analyses.kept import once_per_trace
from xsp.analyses.tree import Tree
from xsp.analyses.work.device_peak import Peak, peak_of
from xsp.analyses.work.formula import FORMULAS
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


def roof_of(trace: Trace, device: int | None = None) -> Roof | None:
    """Return the roof of a trace's device; None where nothing is known of the device.

    Of a device it is the vendor's peak, in the precision in which the trace mostly multiplies: of
    single precision without tensor cores unless operators work on half precision, or kernels'
    names say TensorFloat-32. Of a host it is what `xsp doctor --peak` measured on that machine,
    with as many threads as the trace's operators used (one, or all).

    Args:
        trace: A trace.
        device: Number of a device, as in `trace.spans`; None for the one that worked longest, or
            for the host where no device worked.
    """
    tree = Tree.of(trace)
    if device is None:
        device = _busiest(tree)
    environment = trace.metadata.get("environment") or {}
    if device is None and not tree.is_of(Kind.LAUNCH).any():
        return _host(environment)
    name = _name(environment, device)
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


def _name(environment: Mapping[str, Any], device: int | None) -> str | None:
    """Return the name of a device, where the trace says it or all devices have the same."""
    names = list(environment.get("devices") or ())
    names = names or [gpu["name"] for gpu in environment.get("gpus") or ()]
    if len(set(names)) == 1:
        return str(names[0])
    return str(names[device]) if device is not None and 0 <= device < len(names) else None


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


def _host(environment: Mapping[str, Any]) -> Roof | None:
    """Return the best of what was measured on the trace's machine with as many threads or fewer.

    Fewer may be quicker: where threads share caches, and where other programs ran.
    """
    kept = kept_peaks(str(environment.get("host_id")))
    threads = (environment.get("threads") or {}).get("operators") or math.inf
    usable = [found for found in kept if found.threads <= threads]
    if not usable:
        return None
    flops, moved = max(p.flops_per_s for p in usable), max(p.bytes_per_s for p in usable)
    most = counted(usable[-1].threads, "thread")
    return Roof(flops, moved, f"{usable[-1].cpu}, {most}: measured by xsp doctor --peak")
