"""Measures the seconds and memory of analyses and reports on a trace of many spans.

    python benchmarks/analyses.py [--spans 1000000]

Two traces are written here: of a processor, with layers, operators and library calls with their
sizes, and of two ranks with a GPU each, with launches, and kernels on two streams. Each is read in
a fresh process, which answers all questions that it can, one after the other; a table that several
answers share is made in the first of them. Then reports of smaller traces are written, and opened
where there is a Chromium that playwright (Python's) can start.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
from table import print_header, print_row

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import samples
from samples import Node

import xsp
from xsp.analyses import ALL
from xsp.errors import AnalysisError

BLOCKS = 500  # of a model
RANKS = 2
SIDE = 7  # of an image
REPORTED = (20_000, 100_000)
WIDTHS = (26, 9, 9, 9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spans", type=int, default=1_000_000)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measured(arguments.measure)))
        return
    print_header(f"All analyses of {arguments.spans:,} spans, and reports")
    with tempfile.TemporaryDirectory() as folder:
        analyses(arguments.spans, Path(folder))
        for spans in REPORTED:
            report(spans, Path(folder))


def analyses(spans: int, folder: Path) -> None:
    """Print a row for each analysis: seconds of the trace of a processor and of that of GPUs."""
    found = []
    for gpu in (False, True):
        trace_of(spans, gpu=gpu).save(file := folder / "trace.xsp")
        command = [sys.executable, __file__, "--measure", str(file)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found.append(json.loads(done.stdout))
    print_row(("seconds", "processor", "2 GPUs", ""), WIDTHS)
    for name in found[0]:
        cells = ("-" if times[name] is None else f"{times[name]:.2f}" for times in found)
        print_row((name, *cells, ""), WIDTHS)
    print("\n- is what the trace cannot answer. The sum is without loading; peak is that of the")
    print("process from its start, the trace included.\n")


def measured(file: Path) -> dict[str, float | None]:
    """Return the seconds that each analysis of a file takes, their sum, and peak memory in GiB."""
    begin = time.perf_counter()
    trace = xsp.load(file)
    loaded = time.perf_counter() - begin
    seconds = {analysis.name: _seconds(analysis, trace) for analysis in ALL}
    whole = sum(each for each in seconds.values() if each is not None)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"loading": loaded, **seconds, "all analyses": whole, "peak GiB": peak}


def _seconds(analysis: Any, trace: xsp.Trace) -> float | None:
    begin = time.perf_counter()
    try:
        analysis(trace)
    except AnalysisError:
        return None
    return time.perf_counter() - begin


def report(spans: int, folder: Path) -> None:
    """Print how long a report takes to write, its size, and how long it takes to open."""
    trace, page = trace_of(spans, gpu=False), folder / "report.html"
    begin = time.perf_counter()
    xsp.report(trace, page)
    seconds = time.perf_counter() - begin
    size = page.stat().st_size / 1e6
    opened = opening_seconds(page)
    told = "no Chromium here to open it" if opened is None else f"opens in {opened:.1f} s"
    print(f"report of {len(trace):,} spans: {seconds:.1f} s, {size:.1f} MB, {told}", flush=True)


def opening_seconds(page: Path) -> float | None:
    """Return how long a browser takes until a page is drawn, None where there is none."""
    chromium = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright  # noqa: PLC0415  # not everybody has it
    except ModuleNotFoundError:
        return None
    if chromium is None:
        return None
    with sync_playwright() as play:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = play.chromium.launch(executable_path=chromium, args=flags)
        tab = browser.new_page()
        begin = time.perf_counter()
        tab.goto(page.as_uri())
        tab.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
        seconds = time.perf_counter() - begin
        browser.close()
    return seconds


def trace_of(spans: int, *, gpu: bool) -> xsp.Trace:
    """Return a trace of about so many spans: steps of one model, one after the other."""
    size = len(samples.frame(block(0, gpu=gpu)))
    times = -(-spans // (size * BLOCKS))
    blocks = -(-spans // (size * times))
    net = layer("Net", "Net", [block(i, gpu=gpu) for i in range(blocks)], module_path="")
    one = samples.frame(Node("region", "predict", 2_000, [net], {"process": None, "rank": None}))
    environment = {"devices": ["NVIDIA A100-SXM4-80GB"] * RANKS} if gpu else {}
    metadata = {"name": "benchmark", "warnings": [], "levels": {}, "environment": environment}
    return xsp.Trace(repeated(one, times, RANKS if gpu else 1), metadata)


def repeated(one: pl.DataFrame, times: int, ranks: int) -> pl.DataFrame:
    """Return a step so many times below one root, by so many processes side by side."""
    height, length = one.height, one["end_ns"][0]
    steps = [_step(one, k, k % ranks, k // ranks * length, height) for k in range(times)]
    latency = -(-times // ranks) * length
    root = one.head(1).with_columns(
        end_ns=pl.lit(latency), latency_ns=pl.lit(float(latency)), thread=None
    )
    columns = [pl.col(name).cast(dtype) for name, dtype in one.schema.items()]
    return pl.concat([root.select(columns), *(step.select(columns) for step in steps)])


def _step(one: pl.DataFrame, number: int, rank: int, since: int, height: int) -> pl.DataFrame:
    first, kind = 1 + number * height, pl.col("kind")
    late = pl.when(pl.col("device").is_not_null()).then(6_000).otherwise(0)
    process = pl.when(pl.col("parent_id").is_null()).then(rank)
    return one.with_columns(
        pl.col("span_id") + first,
        (pl.col("parent_id") + first).fill_null(1),
        pl.when(kind == "launch")
        .then("span_id")
        .when(kind == "kernel")
        .then("parent_id")
        .alias("correlation_id")
        + first,
        pl.col("path").str.replace("predict", f"predict/step#{number}", literal=True),
        pl.col("start_ns", "end_ns") + since + late,
        pl.when(pl.col("thread").is_not_null()).then(rank + 1).alias("thread"),
        pl.when(pl.col("device").is_not_null()).then(rank).alias("device"),
        pl.col("attributes").struct.with_fields(process=process, rank=process),
    )


def block(number: int, *, gpu: bool) -> Node:
    """Return a block of layers; every eighth is of the same size."""
    image, size = [8, 64 + number % 8, SIDE, SIDE], 8 * (64 + number % 8) * SIDE**2
    matrix, rows = [8 * SIDE**2, image[1]], [image[1], image[1]]
    weight = [image[1], image[1], 3, 3]
    warning = f"mb8_ic{image[1]}oc{image[1]}_ih7oh7kh3sh1dh0ph1_iw7ow7kw3sw1dw0pw1"
    tensors = {"problem": warning, "tensor_bytes": 8 * size + 36 * image[1] ** 2,
               "formats": "src f32 aBcd16b, wei f32 ABcd16b16a, dst f32 aBcd16b",
               "propagation": "forward_inference"}  # fmt: skip
    sgemm = {"problem": f"TN m{image[1]} n{matrix[0]} k{image[1]}"}

    def work(kernel: str, name: str = "", **more: Any) -> list[Node]:
        return [launch(number, kernel)] if gpu else [call(name, **more)] * bool(name)

    convolve = op("aten::mkldnn_convolution", [image, weight],
                  *work("sm80_xmma_fprop", "convolution", **tensors), bytes=4 * size)  # fmt: skip
    chain = op("aten::conv2d", [image, weight],
               op("aten::convolution", [image, weight], convolve))  # fmt: skip
    product = op("aten::addmm", [image[1:2], matrix, rows],
                   op("aten::empty", [], bytes=4 * size),
                 *work("sgemm_128x64", "SGEMM", **sgemm))  # fmt: skip
    normed = op("aten::native_layer_norm", [matrix],
                *(op("aten::empty", [], bytes=4 * each) for each in (size, 8, 8)),
                *work("vectorized_layer_norm_kernel"))  # fmt: skip
    gelu = op("aten::gelu", [matrix], *work("elementwise_kernel", "eltwise", warning=f"8x{size}"))
    summed = [op("aten::add", [matrix, matrix], *work("elementwise_kernel"), bytes=4 * size)]
    view = op("aten::t", [rows], op("aten::transpose", [rows], op("aten::as_strided", [rows])))
    parts = [
        layer("conv", "Conv2d", [chain], module_path=f"blocks.{number}.conv"),
        layer("ln", "LayerNorm", [op("aten::layer_norm", [matrix], normed)],
              module_path=f"blocks.{number}.ln"),
        layer("fc", "Linear", [op("aten::linear", [matrix, rows], view, product)],
              module_path=f"blocks.{number}.fc"),
        layer("act", "GELU", [gelu], module_path=f"blocks.{number}.act"),
    ]  # fmt: skip
    reduce = [launch(number, "ncclDevKernel_AllReduce", stream=20)] if gpu else []
    summed += [op("c10d::allreduce_", [matrix], *reduce)] * gpu
    return layer(str(number), "Block", parts + summed, module_path=f"blocks.{number}")


def layer(name: str, module: str, below: list[Node], *, module_path: str) -> Node:
    about = {"module_class": module, "module_path": module_path, "phase": "forward"}
    return Node("layer", name, 4_000, below, about | _memory(0, below) | _CALLER)


def op(name: str, shapes: Sequence[Sequence[int]], *below: Node, bytes: int = 0) -> Node:
    about: dict[str, Any] = {"input_shapes": shapes, "input_dtypes": ["float32"] * len(shapes)}
    return Node("op", name, 3_000, list(below), about | _memory(bytes, below) | _CALLER)


def call(name: str, **about: Any) -> Node:
    about |= {"library": "oneDNN 3.4", "threads": 2, "implementation": "jit:avx512_core"}
    return Node("call", name, 20_000, [], about)


def launch(number: int, kernel: str, stream: int = 7) -> Node:
    """Return a call that launches a kernel, or on another stream a collective operation."""
    full = {"full_name": f"void at::native::{kernel}<float, {number % 8}>(Params)"}
    collective = {"collective": "allreduce", "collective_group": "default", "group_size": RANKS,
                  "in_elements": 1 << 20, "element_type": "Float"}  # fmt: skip
    about = full | (collective if stream != 7 else {})
    place = {"device": 0, "stream": stream}
    below = Node("kernel", kernel, 5_000 + number % 8 * 1_000, [], about, place)
    return Node("launch", "cudaLaunchKernel", 4_000, [below])


_CALLER = {"caller_function": "Block.forward", "caller_file": "/srv/model/block.py",
           "caller_line": 42}  # fmt: skip


def _memory(own: int, below: Sequence[Node]) -> dict[str, int]:
    allocated = own + sum(node.attributes.get("allocated_bytes", 0) for node in below)
    return {"allocated_bytes": allocated, "freed_bytes": allocated // 2, "peak_bytes": allocated}


if __name__ == "__main__":
    main()
