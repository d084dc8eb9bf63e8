"""ResNet-50 in four frameworks: where the time goes, by model, layer type and library primitive.

    python benchmarks/frameworks_side_by_side.py FOLDER [--batch N] [--budget SECONDS]

One architecture with random weights runs on the CPU, in processes of its own for each framework:
PyTorch (torchvision), ONNX Runtime (exported from that), TensorFlow and JAX (Keras, as graphs). It
is ResNet-50 of the first paper, as Keras has it: torchvision's strides in the 3 by 3 convolution
(version 1.5), which is 5 % more operations, and is changed here.

Traces go to FOLDER. What is printed is a table of the latencies without a profiler, and what
`xsp compare` says of them; `frameworks.html` in FOLDER is their picture. With `--measure` only the
frameworks that it names are measured, and the other traces are those that FOLDER has.
"""

from __future__ import annotations

import argparse
import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl

import xsp

BATCH = 8
SMALLEST_NS = 50_000  # that the table shows
TARGETS = {
    "PyTorch": [f"{Path(__file__).resolve()}:resnet50"],
    "ONNX Runtime": ["onnx:resnet50.onnx"],
    "TensorFlow": ["keras:ResNet50", "--framework", "tensorflow"],
    "JAX": ["keras:ResNet50", "--framework", "jax"],
}


@functools.cache
def _model() -> Any:
    # In the functions, as only the processes of two of the frameworks import PyTorch.
    import torch  # noqa: PLC0415
    from torchvision.models import resnet50 as version_1_5  # noqa: PLC0415

    torch.manual_seed(0)
    model = version_1_5(weights=None).eval()
    for layer in (model.layer2, model.layer3, model.layer4):
        layer[0].conv1.stride, layer[0].conv2.stride = (2, 2), (1, 1)
    return model


@functools.cache
def _images(batch: int) -> Any:
    import torch  # noqa: PLC0415

    return torch.randn(batch, 3, 224, 224)


def resnet50(batch: int = BATCH) -> Any:
    """Call ResNet-50 of the first paper, in PyTorch."""
    import torch  # noqa: PLC0415

    with torch.inference_mode():
        return _model()(_images(batch))


def export(file: Path, batch: int) -> None:
    """Write ResNet-50 of the first paper as ONNX, by the exporter that traces."""
    import torch  # noqa: PLC0415

    torch.onnx.export(_model(), (_images(batch),), str(file), dynamo=False, input_names=["x"])


def profile(folder: Path, name: str, *, batch: int, budget: float) -> None:
    """Measure one framework; the trace goes to a file of the folder."""
    if name == "ONNX Runtime":
        export(folder / "resnet50.onnx", batch)
    setting = ["--batch", str(batch), "--budget", str(budget), "--levels", "3"]
    command = [sys.executable, "-m", "xsp", "profile", *TARGETS[name], *setting]
    subprocess.run([*command, "--output", f"{name}.xsp"], check=True, cwd=folder)


def beside(traces: dict[str, xsp.Trace], of: str) -> pl.DataFrame:
    """Return self times in ns by layer type or by primitive, a column for each framework."""
    analysis, key = {
        "layer type": (xsp.analyses.layer_type_work, "layer_type"),
        "primitive": (xsp.analyses.primitive_latency, "primitive"),
    }[of]
    table = pl.DataFrame(schema={of: pl.String})
    for name, trace in traces.items():
        if analysis.unmet(trace) is None:
            sums = analysis(trace).group_by(pl.col(key).alias(of)).agg(pl.sum("own_ns").alias(name))
            table = table.join(sums, on=of, how="full", coalesce=True, nulls_equal=True)
    largest = pl.max_horizontal(pl.exclude(of)) if table.width > 1 else pl.lit(0)
    return table.sort(largest, descending=True)


def print_table(traces: dict[str, xsp.Trace]) -> None:
    """Print the latencies at three levels, as Markdown."""
    print("|  |", " | ".join(traces), "|")
    print("|---" * (len(traces) + 1) + "|")
    whole = {name: _estimate(trace) for name, trace in traces.items()}
    print("| **the model** |", " | ".join(whole.values()), "|")
    for of in ("layer type", "primitive"):
        print(f"| **by {of}** |" + " |" * len(traces))
        for row in beside(traces, of).iter_rows(named=True):
            cells = [_milliseconds(row.get(name)) for name in traces]
            if any(cells):
                print(f"| {row[of] or 'not known'} |", " | ".join(cells), "|")


def _estimate(trace: xsp.Trace) -> str:
    root = trace.root
    low, high = root.latency_low_ns or root.latency_ns, root.latency_high_ns or root.latency_ns
    return f"{root.latency_ns / 1e6:.0f} ± {(high - low) / 2e6:.0f} ms"


def _milliseconds(value: float | None) -> str:
    return "" if value is None or value < SMALLEST_NS else f"{value / 1e6:.1f} ms"


def draw(traces: dict[str, xsp.Trace], file: Path) -> None:
    """Write a page with a bar for each framework, of what each layer type takes."""
    # As Bokeh, which not every installation has, is in there.
    from xsp.show.plot.gallery.part import largest_names, parts_of  # noqa: PLC0415
    from xsp.show.plot.lying import by_name, wide  # noqa: PLC0415

    long = beside(traces, "layer type").unpivot(
        index="layer type", variable_name="framework", value_name="own_ns"
    )
    long = long.drop_nulls("own_ns").with_columns(
        largest_names(long.drop_nulls("own_ns"), "layer type", "own_ns", "not known")
    )
    bars = wide(long, ["framework"], "layer type", "own_ns")
    parts = parts_of(bars, ["framework"])
    drawn = by_name(bars, parts, name="framework", unit="own_ns", shown=bars.columns)
    xsp.plot.Plot(drawn, "ResNet-50: what does each layer type take?").save(file)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the traces go")
    parser.add_argument("--batch", default=BATCH, type=int, help="images at once")
    parser.add_argument("--budget", default=60, type=float, help="seconds of measuring, each")
    parser.add_argument("--measure", nargs="*", choices=TARGETS, default=[*TARGETS], metavar="NAME")
    return parser.parse_args()


def main() -> None:
    asked = arguments()
    asked.folder.mkdir(parents=True, exist_ok=True)
    for name in asked.measure:
        profile(asked.folder, name, batch=asked.batch, budget=asked.budget)
    files = {name: asked.folder / f"{name}.xsp" for name in TARGETS}
    traces = {name: xsp.load(file) for name, file in files.items() if file.exists()}
    if len(traces) > 1:
        print(xsp.compare(*traces.values(), names=list(traces)).text(rows=12, width=120))
    print_table(traces)
    draw(traces, asked.folder / "frameworks.html")


if __name__ == "__main__":
    main()
