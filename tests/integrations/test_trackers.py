"""Traces in experiment trackers, each by its own library."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import xsp
from xsp.integration.tracker import log_to_mlflow, log_to_tensorboard, metrics

DEMO = Path(xsp.__file__).with_name("show") / "cli" / "demo.xsp"


@pytest.fixture(scope="module")
def trace() -> xsp.Trace:
    return xsp.load(DEMO)


def test_metrics_are_those_of_the_root_and_unknown_ones_are_left_out(trace: xsp.Trace) -> None:
    found = metrics(trace)
    assert found["xsp/latency_ms"] == pytest.approx(12.5, abs=0.1)
    assert found["xsp/device_ms"] == pytest.approx(1.05, abs=0.01)
    assert "xsp/energy_j" not in found
    assert "xsp/latency_low_ms" not in found  # it ran once
    settings = {**trace.metadata, "settings": {"batch": 32}}
    told = metrics(xsp.Trace(trace.spans, settings), prefix="")
    assert told["samples_per_s"] == pytest.approx(32e3 / told["latency_ms"])


@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_metrics_report_and_trace(
    trace: xsp.Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = import_module("mlflow")
    for name in ("MLFLOW_ALLOW_FILE_STORE", "MLFLOW_DISABLE_TELEMETRY"):
        monkeypatch.setenv(name, "true")
    for name in ("MLFLOW_TRACKING_URI", "_MLFLOW_TELEMETRY_SESSION_ID", "MLFLOW_EXPERIMENT_ID"):
        monkeypatch.setenv(name, "")  # MLflow sets them; what was before comes back
    mlflow.set_tracking_uri(tmp_path.as_uri())
    mlflow.set_experiment("profiles")
    with mlflow.start_run() as run:
        log_to_mlflow(trace)
    logged = mlflow.get_run(run.info.run_id).data.metrics
    assert logged == pytest.approx(metrics(trace))
    files = {path.name for path in tmp_path.rglob("artifacts/xsp/*")}
    assert files == {"trace.xsp", "report.html"}


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_has_scalars_and_the_tree(
    trace: xsp.Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By this module TensorBoard is told to leave TensorFlow alone.
    notf = "tensorboard.compat.notf"
    monkeypatch.setitem(sys.modules, notf, ModuleType(notf))
    writers = import_module("torch.utils.tensorboard")
    readers = import_module("tensorboard.backend.event_processing.event_accumulator")
    with writers.SummaryWriter(str(tmp_path)) as writer:
        log_to_tensorboard(trace, writer, step=7)
    events = readers.EventAccumulator(str(tmp_path))
    events.Reload()
    (scalar,) = events.Scalars("xsp/latency_ms")
    assert (scalar.step, scalar.value) == (7, pytest.approx(metrics(trace)["xsp/latency_ms"]))
    assert xsp.load(tmp_path / "xsp-7.xsp").spans.equals(trace.spans)
    assert (tmp_path / "xsp-7.html").exists()


WANDB = """
import sys
import pytest
import wandb
import xsp
from xsp.integration.tracker import log_to_wandb, metrics

trace = xsp.load(sys.argv[1])
with wandb.init(mode="offline", project="xsp") as run:
    log_to_wandb(trace)
    assert run.summary["xsp/latency_ms"] == pytest.approx(metrics(trace)["xsp/latency_ms"])
with pytest.raises(xsp.MeasurementError, match="wandb.init"):
    log_to_wandb(trace)
"""


@pytest.mark.slow  # in a process of its own, because wandb leaves threads behind
def test_wandb_offline_has_metrics_and_an_artifact(tmp_path: Path) -> None:
    folders = dict.fromkeys(("WANDB_DIR", "WANDB_DATA_DIR", "WANDB_CACHE_DIR"), str(tmp_path))
    subprocess.run(
        [sys.executable, "-c", WANDB, str(DEMO)], check=True, env={**os.environ, **folders}
    )
    assert list(tmp_path.rglob("*.wandb"))


def test_a_missing_library_is_named(trace: xsp.Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(xsp.MeasurementError, match="pip install mlflow-skinny"):
        log_to_mlflow(trace)
