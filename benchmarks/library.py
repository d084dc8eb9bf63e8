"""Measures the time that the library pass adds to a model, beside oneDNN's verbose mode.

Three ways to evaluate a model take turns: with nothing, with the oneDNN provider armed,
and with the library's verbose mode (the same level, timestamps on) written to a file. A
round's differences from its bare step are what each of them adds, in processor time
of the one thread that runs the model: it waits for nothing, and other programs do not count.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from models import Case, make
from table import print_header, print_row
from torch import nn

from xsp.clock import SystemClock
from xsp.level import Kind
from xsp.provider.contract import Records, Request
from xsp_levels.library.onednn.line import parse_lines
from xsp_levels.library.onednn.provider import OneDnn, OneDnnRecords
from xsp_levels.library.onednn.switch import OFF, PROFILE, TIMESTAMP

WIDTHS = (24, 7, 11, 12, 12, 20)
LINES = 100_000
CALLS = Request(frozenset({Kind.CALL}))


def small_convolutions(batch: int) -> Case:
    """Return forty convolutions so small that what is printed for each weighs most."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(16, 16, 3, padding=1) for _ in range(40)]
    return Case(
        "40 small convolutions", batch, nn.Sequential(*layers), torch.randn(batch, 16, 32, 32)
    )


@contextlib.contextmanager
def verbose_file() -> Iterator[None]:
    """Print what oneDNN says into a file, as one does without xsp."""
    before = os.dup(1)
    with tempfile.TemporaryFile(buffering=0) as file:
        os.dup2(file.fileno(), 1)
        torch._C._verbose.mkldnn_set_verbose(PROFILE)
        try:
            yield
        finally:
            torch._C._verbose.mkldnn_set_verbose(OFF)
            os.dup2(before, 1)
            os.close(before)


@contextlib.contextmanager
def provider(armed: OneDnn, kept: list[Records]) -> Iterator[None]:
    armed.start(SystemClock(), CALLS)
    try:
        yield
    finally:
        kept.append(armed.stop())


def seconds(case: Case, way: Callable[[], contextlib.AbstractContextManager[None]]) -> float:
    with way():
        case.evaluate()  # caches are as they were whatever was done between
        begin = time.thread_time()
        case.evaluate()
        return time.thread_time() - begin


def measure(case: Case, rounds: int) -> OneDnnRecords:
    """Print one row; return what the provider kept last."""
    kept: list[Records] = []
    armed = OneDnn()
    ways = (contextlib.nullcontext, lambda: provider(armed, kept), verbose_file)
    times = np.empty((rounds, len(ways)))
    with torch.no_grad():
        for at in range(-3, rounds):
            for way in np.random.default_rng(at + 3).permutation(len(ways)):
                times[max(at, 0), way] = seconds(case, ways[way])
    bare = np.median(times[:, 0])
    added = 1e6 * (times[:, 1:] - times[:, :1])
    data: OneDnnRecords = kept[-1].data
    lines = data.lines.count(b"\n") / 2
    ours, peer = np.median(added, axis=0)
    print_row(
        (
            f"{case.name}, batch {case.batch}",
            f"{lines:.0f}",
            f"{1e3 * bare:.2f} ms",
            f"{ours:.0f} µs",
            f"{peer:.0f} µs",
            f"{ours / peer:.2f} ({_interval(added)})",
        ),
        WIDTHS,
    )
    return data


def _interval(added: np.ndarray) -> str:
    """Return the 95 % interval of the ratio of medians, by resampling rounds."""
    random = np.random.default_rng(0)
    picks = random.integers(0, len(added), (2000, len(added)))
    medians = np.median(added[picks], axis=1)
    low, high = np.quantile(medians[:, 0] / medians[:, 1], (0.025, 0.975))
    return f"{low:.2f} to {high:.2f}"


def parsing(data: OneDnnRecords) -> None:
    lines = [line for line in data.lines.splitlines(keepends=True) if b",exec," in line]
    text = b"".join(lines * (LINES // len(lines) + 1))
    begin = time.perf_counter()
    frame, lost = parse_lines(text, data.header.fields)
    took = time.perf_counter() - begin
    print(
        f"\n{frame.height:,} lines ({len(text) / 1e6:.0f} MB) parsed in {took:.2f} s, {lost} lost"
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=100)
    given = options.parse_args()
    os.environ[TIMESTAMP] = "1"  # of the peer too; oneDNN reads it once
    torch.set_num_threads(1)
    print_header("Time added by the library pass, against oneDNN's verbose mode into a file")
    print_row(("model", "lines", "bare", "xsp adds", "verbose adds", "ratio (95 %)"), WIDTHS)
    measure(small_convolutions(4), given.rounds * 10)
    measure(make("MobileNet-v3-large", 1), given.rounds * 2)
    parsing(measure(make("ResNet-50", 1), given.rounds))


if __name__ == "__main__":
    main()
