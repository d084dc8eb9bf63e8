"""Callbacks for trainers, tried with real fits of tiny models."""

from __future__ import annotations

import logging
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import xsp
from xsp.integration.training import TrainingProfile

STEPS = 8


@pytest.fixture
def loader() -> DataLoader[Any]:
    data = TensorDataset(torch.randn(4 * STEPS, 16), torch.randint(0, 4, (4 * STEPS,)))
    return DataLoader(data, batch_size=4)


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Tiny models and trainers."""
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # which Lightning sets for good
    return import_module("fits")


def ended(training: TrainingProfile) -> None:
    """Wait until a profile has noticed that its trainer failed."""
    while training.running or training.path is None:
        time.sleep(0.01)


def steps_of(training: TrainingProfile) -> int:
    assert training.trace is not None
    groups = training.trace.metadata["groups"]
    return sum(group["calls"] for group in groups if "training" in group["phase"])


@pytest.mark.filterwarnings("ignore")
def test_lightning_callback_profiles_each_stage_into_a_file_of_its_own(
    tmp_path: Path,
    loader: DataLoader[Any],
    fits: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    callback = fits.LightningCallback(levels="layers", folder=tmp_path / "traces")
    trainer = fits.lightning(tmp_path, callbacks=[callback])
    with caplog.at_level(logging.INFO, logger="xsp"):
        trainer.fit(fits.Classifier(), loader, loader)
    assert steps_of(callback.training) == STEPS
    assert callback.training.path == tmp_path / "traces" / "fit.xsp"
    assert xsp.load(callback.training.path).name == "fit"
    said = "\n".join(caplog.messages)
    assert "training: 8 iterations" in said
    assert f"xsp show {callback.training.path}" in said
    trainer.validate(fits.Classifier(), loader, verbose=False)
    assert callback.training.path == tmp_path / "traces" / "validate.xsp"
    assert not callback.training.running


@pytest.mark.filterwarnings("ignore")
def test_lightning_failure_passes_through_and_keeps_what_was_recorded(
    tmp_path: Path, loader: DataLoader[Any], fits: Any
) -> None:
    callback = fits.LightningCallback(levels=1, folder=tmp_path)
    with pytest.raises(RuntimeError, match="the batch is bad"):
        fits.lightning(tmp_path, callbacks=[callback]).fit(fits.Classifier(fails_at=5), loader)
    assert steps_of(callback.training) == 5
    assert callback.training.trace is not None
    assert "cut-short" in [each.code for each in callback.training.trace.warnings]


@pytest.mark.filterwarnings("ignore")
def test_lightning_profiler_names_the_actions(
    tmp_path: Path, loader: DataLoader[Any], fits: Any
) -> None:
    profiler = fits.LightningProfiler(levels=1, folder=tmp_path, name="run")
    trainer = fits.lightning(tmp_path, profiler=profiler)
    with pytest.raises(RuntimeError, match="bad"):
        trainer.fit(fits.Classifier(fails_at=2), loader)
    ended(profiler.training)  # Lightning did not tell
    assert steps_of(profiler.training) == 2
    trainer.fit(fits.Classifier(), loader)
    assert steps_of(profiler.training) == STEPS
    assert profiler.training.trace is not None
    names = profiler.training.trace.spans["name"].to_list()
    assert "run_training_epoch" in names
    assert any("configure_optimizers" in name or "training_step" in name for name in names)
    assert profiler.training.path == tmp_path / "run-fit-2.xsp"
    assert "run" in profiler.summary()


@pytest.mark.filterwarnings("ignore")
def test_hugging_face_callback_profiles_the_training(tmp_path: Path, fits: Any) -> None:
    schedule = xsp.schedule(wait=2, warmup=1, active=3, repeat=1)
    callback = fits.HuggingFaceCallback(
        levels="layers", folder=tmp_path, schedule=schedule, report=True
    )
    fits.bert(tmp_path / "hf", callback).train()
    trace = callback.training.trace
    assert trace is not None
    assert any("BertLayer" in str(span) for span in trace.layers["name"].to_list()) or (
        "BertLayer" in trace.tree(rows=None)
    )
    assert (tmp_path / "train.xsp").exists()
    assert "<html" in (tmp_path / "train.html").read_text("utf-8")[:200]


@pytest.mark.filterwarnings("ignore")
def test_a_failed_training_of_hugging_face_ends_its_profile(tmp_path: Path, fits: Any) -> None:
    first, second = (fits.HuggingFaceCallback(levels=1, folder=tmp_path) for _ in range(2))
    trainer = fits.bert(tmp_path / "hf", first)
    trainer.train_dataset = [{"input_ids": torch.tensor([99])}]  # out of the vocabulary
    with pytest.raises(IndexError):
        trainer.train()
    ended(first.training)
    assert first.training.trace is not None
    assert "cut-short" in [each.code for each in first.training.trace.warnings]
    fits.bert(tmp_path / "hf", second).train()
    assert steps_of(second.training) == fits.STEPS


@pytest.mark.filterwarnings("ignore")
def test_accelerate_tracker_profiles_until_the_end_of_training(
    tmp_path: Path, loader: DataLoader[Any], fits: Any
) -> None:
    tracker = fits.XspTracker(levels=1, folder=tmp_path)
    accelerator = fits.Accelerator(log_with=tracker, cpu=True)
    accelerator.init_trackers("experiment", config={"rate": 0.1})
    model = torch.nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model, optimizer, batches = accelerator.prepare(model, optimizer, loader)
    for features, target in batches:
        optimizer.zero_grad()
        loss = cross_entropy(model(features), target)
        accelerator.backward(loss)
        optimizer.step()
        accelerator.log({"loss": loss.item()})
    accelerator.end_training()
    assert steps_of(tracker.training) == STEPS
    assert accelerator.get_tracker("xsp", unwrap=True) is tracker.training


def test_ranks_save_files_of_their_own_and_the_first_one_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        training = TrainingProfile(1, folder=tmp_path)
        with caplog.at_level(logging.INFO, logger="xsp"):
            training.begin("fit")
            with xsp.span("work"):
                sum(range(1000))
            training.end("fit")
        assert training.path == tmp_path / f"fit-rank{rank}.xsp"
    assert "fit-rank0.xsp" in caplog.text
    assert "fit-rank1.xsp" not in caplog.text


def test_a_training_goes_on_where_its_trace_cannot_be_made_or_saved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    training = TrainingProfile(1, folder=tmp_path / "file" / "folder")
    training.begin("fit")
    training.end("evaluate")  # of a stage within
    assert training.running
    training.end("fit")
    assert "not saved" in caplog.text
    assert training.path is None
    with xsp.profile(levels=1):
        training.begin("fit")
        training.end("fit")
    assert "no trace" in caplog.text
    with pytest.raises(ValueError, match="level"):
        TrainingProfile("everything", folder=tmp_path)
