"""Measures xsp's costs besides the steps: an idle span, the import, the waiting."""

from __future__ import annotations

import subprocess
import sys
import timeit
from time import perf_counter
from typing import Any

import torch
from models import make
from table import print_header, print_row

import xsp

SPANS = 200_000
IMPORT = "import time; t = time.perf_counter(); import xsp; print(time.perf_counter() - t)"
WIDTHS = (56, 12, 12)


def idle_span_us() -> float:
    """Measure the cost of `with xsp.span(...)` while nothing profiles, in microseconds."""
    loop = timeit.repeat("for _ in range(n): pass", globals={"n": SPANS}, number=1, repeat=7)
    code = "for _ in range(n):\n    with span('tokenize'):\n        pass"
    spans = timeit.repeat(code, globals={"n": SPANS, "span": xsp.span}, number=1, repeat=7)
    return (min(spans) - min(loop)) / SPANS * 1e6


def import_s() -> float:
    """Return how long `import xsp` takes in a fresh process, the best of seven, in seconds."""
    runs = (
        subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True)
        for _ in range(7)
    )
    return min(float(run.stdout) for run in runs)


def waiting_s(name: str, batch: int) -> tuple[float, float]:
    """Measure a user's wait at levels=2 beyond the steps, and in all, in seconds."""
    case, inside = make(name, batch), 0.0

    def predict(*args: Any) -> Any:
        nonlocal inside
        begin = perf_counter()
        try:
            return case.model(*args)
        finally:
            inside += perf_counter() - begin

    begin = perf_counter()
    xsp.measure(predict, case.inputs, levels=2)
    whole = perf_counter() - begin
    return whole - inside, whole


def main() -> None:
    torch.set_num_threads(1)
    print_header("What xsp costs besides the steps")
    print_row(("what", "measured", "bar"), WIDTHS)
    print_row(("xsp.span while nothing profiles", f"{idle_span_us():.3f} us", "0.3 us"), WIDTHS)
    print_row(("import xsp, fresh process", f"{import_s():.3f} s", "0.15 s"), WIDTHS)
    with torch.inference_mode():
        for name, batch in (("ResNet-50", 1), ("MobileNet-v3-large", 1)):
            beyond, whole = waiting_s(name, batch)
            what = f"measuring {name} at levels=2, beyond the steps"
            print_row((what, f"{beyond:.2f} s", "2 s"), WIDTHS)
            print_row(("  the whole of it", f"{whole:.2f} s", ""), WIDTHS)


if __name__ == "__main__":
    main()
