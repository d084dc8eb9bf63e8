"""Peaks of devices: a device's name in, what its vendor's data sheet says that it does at most out.

Rates are dense (no sparsity), at boost clock, and of one device as a program sees it (one of the
two of a Tesla M60, one die of an MI250X). Sources: NVIDIA's and AMD's data sheets of each product,
for NVIDIA's architectures also their white papers (Volta, Turing, Ampere, Hopper, Blackwell). The
paper's table VII has these for its five systems; there the Quadro RTX 6000 has 624 GB/s, while its
data sheet, and 384 bits at 14 Gbit/s, say 672.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Peak:
    """What a device does at most.

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
