"""Does a block stay bounded, however long it lasts, and however many blocks a process has?

Each case runs in a process of its own, because the allocator keeps what it once had. Resident
memory is that of the process: PyTorch alone takes some 500 MiB of it. *Peak* includes the making
of the trace, which happens when it is first asked for.

    python benchmarks/bounds.py            # a few minutes
    python benchmarks/bounds.py --part 0.1 # a tenth of the steps
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from functools import partial
from io import StringIO
from time import perf_counter
from typing import Any

import psutil
import torch
from table import print_header, print_row
from torch import nn

import xsp

MIB = 1 << 20
SETTINGS: dict[str, dict[str, Any]] = {
    "1": {"levels": 1},
    "2": {"levels": 2},
    "2, no budget": {"levels": 2, "budget": None},
}
COLUMNS = ("before", "a tenth", "end", "peak", "leave s", "trace s")
Case = Callable[..., tuple[float, ...]]
WIDTHS = (30, 14, 10, 10, 10, 10, 10, 10)


def resident() -> float:
    """Return the resident memory of this process in MiB."""
    return psutil.Process(os.getpid()).memory_info().rss / MIB


def peak() -> float:
    """Return the most resident memory that this process had, in MiB."""
    with open("/proc/self/status", encoding="utf-8") as status:
        line = next(line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def model(layers: int) -> Callable[[], Any]:
    """Return a call of a tiny model."""
    net = nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers))).eval()
    return partial(net, torch.ones(1, 4))


def one_block(count: int, layers: int, **settings: Any) -> tuple[float, ...]:
    """Call a model many times in one block; return MiB and seconds for a row of the table."""
    call = model(layers)
    call()
    before = resident()
    with xsp.profile(repeat=False, **settings) as prof:
        for step in range(count):
            call()
            if step == count // 10:
                early = resident()
        late = resident()
        began = perf_counter()
    left = perf_counter() - began
    began = perf_counter()
    _ = prof.trace
    made = perf_counter() - began
    return before, early, late, peak(), left, made


def many_blocks(count: int, **settings: Any) -> tuple[float, ...]:
    """Profile many short blocks in turn; return MiB and seconds for a row of the table."""
    call = model(2)
    before = resident()
    left = made = 0.0
    for block in range(count):
        with xsp.profile(repeat=False, **settings) as prof:
            for _ in range(5):
                call()
            began = perf_counter()
        left = max(left, perf_counter() - began)
        began = perf_counter()
        _ = prof.trace
        made = max(made, perf_counter() - began)
        if block == count // 20:
            gc.collect()
            early = resident()
    gc.collect()
    return before, early, resident(), peak(), left, made


def measured(case: Case, numbers: Sequence[int], settings: dict[str, Any]) -> tuple[float, ...]:
    """Run a case in this process, on one thread and without gradients."""
    torch.set_num_threads(1)
    with torch.inference_mode(), redirect_stderr(StringIO()):  # the progress of making a trace
        return case(*numbers, **settings)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", type=float, default=1.0, help="Part of the steps and blocks.")
    part = parser.parse_args().part
    print_header("Memory (MiB), and seconds to leave the block and to make its trace")
    print_row(("case", "levels", *COLUMNS), WIDTHS)
    cases = (
        ("blocks", many_blocks, (1_000,)),
        ("steps", one_block, (300_000, 1)),
        ("steps of 100 layers", one_block, (10_000, 100)),
        ("steps, a full log", one_block, (1_000_000, 1)),
    )
    context = multiprocessing.get_context("spawn")
    for name, case, (count, *rest) in cases:
        for levels, settings in SETTINGS.items():
            number = max(int(count * part), 20)
            with context.Pool(1) as pool:
                *sizes, left, made = pool.apply(measured, (case, (number, *rest), settings))
            row = (f"{number:,} {name}", levels, *(f"{size:.0f}" for size in sizes))
            print_row((*row, f"{left:.2f}", f"{made:.2f}"), WIDTHS)


if __name__ == "__main__":
    main()
