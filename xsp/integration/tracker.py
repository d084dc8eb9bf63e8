"""Hands a trace to an experiment tracker: metrics, the report and the trace's file.

Example:
    Log a profile with a run of MLflow::

        from xsp.integration.tracker import log_to_mlflow

        with mlflow.start_run():
            with xsp.profile() as prof:
                train()
            log_to_mlflow(prof.trace)
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import polars as pl

from xsp.errors import ExportError, MeasurementError
from xsp.trace import Trace, attribute_column

__all__ = ["log_to_mlflow", "log_to_tensorboard", "log_to_wandb", "metrics"]


def metrics(trace: Trace, *, prefix: str = "xsp/") -> dict[str, float]:
    """Summarize a trace as numbers; what is not known is left out.

    Args:
        trace: Any trace.
        prefix: Begin of all names, by default `xsp/`.

    Returns:
        `latency_ms` of the root with `latency_low_ms` and `latency_high_ms`, `device_ms`,
        `step_ms` (of a program's costliest kind of step, on average), `samples_per_s`,
        `peak_memory_bytes`, `energy_j` of a step, and `warnings` (how many there are).
    """
    root = trace.root
    found: dict[str, Any] = {
        "latency_ms": root.latency_ns,
        "latency_low_ms": root.latency_low_ns,
        "latency_high_ms": root.latency_high_ns,
        "device_ms": root.device_ns,
    }
    found = {name: value / 1e6 for name, value in found.items() if value is not None}
    groups = trace.metadata.get("groups") or ()
    if groups:
        main = max(groups, key=lambda group: group["total_ns"] or 0.0)
        found["step_ms"] = None if main["latency_ns"] is None else main["latency_ns"] / 1e6
    peak = attribute_column(trace.spans, "peak_bytes", pl.Int64).max()
    batch = (trace.metadata.get("settings") or {}).get("batch")
    energy = root.attributes.get("energy_j")
    found |= {"peak_memory_bytes": peak, "energy_j": energy, "warnings": len(trace.warnings)}
    if batch and root.latency_ns:
        found["samples_per_s"] = batch * 1e9 / root.latency_ns
    return {prefix + name: float(value) for name, value in found.items() if value is not None}


def log_to_mlflow(trace: Trace, *, prefix: str = "xsp/", folder: str = "xsp") -> None:
    """Log metrics, report and trace to the active run of MLflow; without one MLflow begins one.

    Args:
        trace: Any trace.
        prefix: Begin of the metrics' names.
        folder: Folder among the run's artifacts.

    Raises:
        MeasurementError: MLflow is not installed.
    """
    mlflow = _library("mlflow", "mlflow-skinny")
    mlflow.log_metrics(metrics(trace, prefix=prefix))
    with _files(trace) as files:
        for file in files:
            mlflow.log_artifact(str(file), folder)


def log_to_wandb(trace: Trace, run: Any = None, *, prefix: str = "xsp/") -> None:
    """Log metrics, report and trace to a run of Weights & Biases, offline runs included.

    Args:
        trace: Any trace.
        run: The run; by default the active one (`wandb.run`).
        prefix: Begin of the metrics' names.

    Raises:
        MeasurementError: wandb is not installed, or no run is active.
    """
    wandb = _library("wandb", "wandb")
    run = run or wandb.run
    if run is None:
        raise MeasurementError("No run of Weights & Biases is active. Begin one: wandb.init().")
    artifact = wandb.Artifact(f"xsp-{run.id}", type="profile")
    with _files(trace) as files:
        for file in files:
            artifact.add_file(str(file))
        page = next((file for file in files if file.suffix == ".html"), None)
        html = {} if page is None else {f"{prefix}report": wandb.Html(page.read_text("utf-8"))}
        run.log({**metrics(trace, prefix=prefix), **html})
        run.log_artifact(artifact)


def log_to_tensorboard(trace: Trace, writer: Any, *, step: int = 0, prefix: str = "xsp/") -> None:
    """Write metrics and tree to a `SummaryWriter`, and report and trace into its folder.

    Args:
        trace: Any trace.
        writer: A `torch.utils.tensorboard.SummaryWriter`, or one of tensorboardX.
        step: The global step of the metrics.
        prefix: Begin of the metrics' names.
    """
    for name, value in metrics(trace, prefix=prefix).items():
        writer.add_scalar(name, value, step)
    tree = trace.tree(width=100).replace("\n", "\n    ")
    writer.add_text(f"{prefix}tree", f"    {tree}", step)  # indented: Markdown keeps its spaces
    folder = Path(writer.log_dir)
    with _files(trace) as files:
        for file in files:
            (folder / f"xsp-{step}{file.suffix}").write_bytes(file.read_bytes())


def _library(name: str, package: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError:
        raise MeasurementError(
            f"{name} is not installed. Install it: pip install {package}."
        ) from None


@contextmanager
def _files(trace: Trace) -> Iterator[list[Path]]:
    """Yield the trace's file, and the report where what draws it is installed."""
    with tempfile.TemporaryDirectory(prefix="xsp-") as folder:
        files = [trace.save(Path(folder) / "trace.xsp")]
        with suppress(ExportError):  # `pip install 'xsp[report]'` brings what draws it
            files.append(trace.report(Path(folder) / "report.html"))
        yield files
