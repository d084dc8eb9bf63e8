"""What docs/import.md promises: recordings of other tools are traces like any other."""

from __future__ import annotations

import gzip
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from small import answer, images, network
from torch.profiler import ProfilerActivity, profile, schedule

import xsp

DATA = Path(__file__).parents[1] / "data"
CPU = [ProfilerActivity.CPU]


@pytest.fixture(scope="module")
def kineto(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record three steps with torch.profiler."""
    path = tmp_path_factory.mktemp("kineto") / "steps.json"
    model, x = network(), images()
    with (
        warnings.catch_warnings(action="ignore"),  # that one cycle is kept, which is all there is
        torch.inference_mode(),
        profile(
            activities=CPU,
            schedule=schedule(wait=0, warmup=1, active=3),
            on_trace_ready=lambda made: made.export_chrome_trace(str(path)),
            record_shapes=True,
            with_stack=True,
        ) as profiler,
    ):
        for _ in range(4):
            model(x)
            profiler.step()
    return path


def test_a_recording_of_torch_profiler_is_a_tree_of_modules_and_operators(kineto: Path) -> None:
    trace = xsp.read(kineto)
    trace.check()
    layers = trace.spans.filter(kind="layer")["name"].to_list()
    assert [name for name in layers if "Linear" in name] == ["Linear_0", "Linear_1"]
    parents = dict(trace.spans.select("span_id", "name").rows())
    product = trace.spans.filter(pl.col("name") == "aten::linear").row(0, named=True)
    assert parents[product["parent_id"]] == "Linear_0"
    assert product["attributes"]["input_shapes"][0] == [2, 8]


def test_the_profiler_stays_in_the_numbers_and_the_first_lines_say_so(kineto: Path) -> None:
    trace = xsp.read(kineto)
    assert "recorded by torch.profiler; its overhead is included" in str(trace)
    assert trace.spans["overhead_ns"].null_count() == len(trace)
    assert trace.metadata["imported"]["tool"].startswith("torch.profiler")


def test_a_typical_step_is_shown_or_the_whole(kineto: Path) -> None:
    step, whole = xsp.read(kineto), xsp.read(kineto, steps=False)
    cold = any(warning.code == "steps-left-out" for warning in step.warnings)  # the first, or none
    assert len(step.metadata["imported"]["steps"]) == 3 - cold
    assert whole.metadata["imported"]["steps"] == ("",)
    assert len(whole) > 2 * len(step)


def test_the_format_is_found_from_the_content_whatever_the_name(
    kineto: Path, tmp_path: Path
) -> None:
    odd = tmp_path / "recording.of.mine"
    odd.write_bytes(gzip.compress(kineto.read_bytes()))
    assert xsp.read(odd).spans["name"].to_list()[1:] == xsp.read(kineto).spans["name"].to_list()[1:]


def test_import_prints_the_tree_and_saves_the_trace(kineto: Path, tmp_path: Path) -> None:
    shutil.copy(kineto, tmp_path / "steps.json")
    done = answer(tmp_path, "import", "steps.json")
    assert done.returncode == 0, done.stderr
    assert "Linear_0" in done.stdout
    assert xsp.load(tmp_path / "steps.xsp").spans.equals(xsp.read(tmp_path / "steps.json").spans)


def test_show_takes_a_recording_and_saves_nothing(kineto: Path, tmp_path: Path) -> None:
    shutil.copy(kineto, tmp_path / "steps.json")
    assert "Linear_0" in answer(tmp_path, "show", "steps.json").stdout
    assert [path.name for path in tmp_path.iterdir()] == ["steps.json"]


def test_several_ranks_are_one_trace_with_a_child_for_each(kineto: Path, tmp_path: Path) -> None:
    files = []
    for rank in range(2):
        said: dict[str, Any] = json.loads(kineto.read_text(encoding="utf-8"))
        said["distributedInfo"] = {"backend": "gloo", "rank": rank, "world_size": 2}
        files.append(tmp_path / f"rank{rank}.json")
        files[-1].write_text(json.dumps(said), encoding="utf-8")
    trace = xsp.read(*files)
    trace.check()
    ranks = [child.attributes["rank"] for child in trace.children(trace.root)]
    assert ranks == [0, 1]
    assert len(trace.metadata["imported"]["recordings"]) == 2


@pytest.mark.parametrize(
    ("file", "tool"),
    [
        ("onnxruntime/parallel.json", "ONNX Runtime"),
        ("tensorflow/saved-model.xplane.pb.gz", "TensorFlow"),
    ],
)
def test_recordings_of_other_tools_are_read(file: str, tool: str) -> None:
    trace = xsp.read(DATA / file)
    trace.check()
    assert tool in str(trace.metadata["imported"]["tool"])
    assert "op" in set(trace.spans["kind"])


@pytest.mark.parametrize("content", [b"", b"{}", b"nothing that is known", b"\x00" * 100])
def test_what_no_importer_reads_is_told_with_what_can_be_read(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "odd.json"
    path.write_bytes(content)
    with pytest.raises(xsp.TraceFormatError, match=r"odd\.json"):
        xsp.read(path)


def test_an_unknown_file_ends_the_command_in_words(tmp_path: Path) -> None:
    (tmp_path / "odd.json").write_text("nothing")
    done = answer(tmp_path, "import", "odd.json")
    assert done.returncode == 3
    assert "odd.json" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "odd.xsp").exists()
