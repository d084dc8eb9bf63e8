"""Roofs: of known devices by name and precision, of this machine as it was measured."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from hand_made import row, trace_of

from xsp.answer.analyses.work import roof_of
from xsp.answer.analyses.work.roof import peak_of
from xsp.machine import MachinePeak, peak
from xsp.record.session import describe_environment
from xsp.show.cli import app as cli
from xsp.trace import Trace

PEAKS = [
    MachinePeak(1, 50e9, 10e9, "numpy 2", "A processor"),
    MachinePeak(8, 300e9, 40e9, "numpy 2", "A processor"),
]
SMALL = (
    "import sys, xsp.machine.peak as peak;"
    "peak._ROWS, peak._COPIED, peak._SECONDS = 64, 1 << 16, 0.01;"
    "print(peak.measured(int(sys.argv[1])))"
)


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep peaks in a folder of the test's."""
    monkeypatch.setattr(peak, "state_folder", lambda: tmp_path / "state")
    return tmp_path / "state" / "peak.json"


def on_device(kernel: str = "gemm", types: str = "float32", **environment: Any) -> Trace:
    multiply = row(
        0, "op", "aten::mm", 5, input_shapes=[[2, 2], [2, 2]], input_dtypes=[types, types]
    )
    rows = [row(None, "region", "predict", 9), multiply, row(1, "kernel", kernel, 5)]
    return trace_of(rows, environment=environment)


def on_host(host_id: str | None, threads: int | None = None) -> Trace:
    rows = [row(None, "region", "predict", 9), row(0, "op", "aten::mm", 5)]
    return trace_of(rows, environment={"host_id": host_id, "threads": {"operators": threads}})


@pytest.mark.parametrize(
    ("name", "single", "half", "bytes_per_s"),
    [
        ("Tesla V100-PCIE-32GB", 14.0, 112.0, 900),
        ("NVIDIA A100-SXM4-80GB", 19.5, 312.0, 2039),
        ("NVIDIA A100 80GB PCIe", 19.5, 312.0, 1935),
        ("NVIDIA A100-PCIE-40GB", 19.5, 312.0, 1555),
        ("NVIDIA H100 PCIe", 51.0, 756.0, 2000),
        ("NVIDIA H100 80GB HBM3", 66.9, 989.4, 3350),
        ("Tesla T4", 8.1, 65.0, 320),
        ("NVIDIA L4", 30.3, 121.0, 300),
        ("NVIDIA B200", 80.0, 2250.0, 8000),
        ("AMD Instinct MI210", 22.6, 181.0, 1638),
        ("AMD Instinct MI300X", 163.4, 1307.4, 5325),
        ("AMD Instinct MI350X", 144.2, 2306.9, 8000),
    ],
)
def test_devices_are_known_by_the_names_of_their_drivers(
    name: str, single: float, half: float, bytes_per_s: float
) -> None:
    found = peak_of(name)
    assert found is not None
    assert (found.single, found.half) == pytest.approx((single * 1e12, half * 1e12))
    assert found.bytes_per_s == bytes_per_s * 1e9


@pytest.mark.parametrize(
    ("given", "tera"),
    [
        ({"types": "float32"}, 19.5),
        ({"types": "bfloat16"}, 312.0),
        ({"types": "float16"}, 312.0),
        ({"kernel": "cutlass_80_tensorop_s1688gemm_tf32"}, 156.0),
    ],
)
def test_the_roof_is_of_the_precision_that_a_trace_multiplies_in(given: Any, tera: float) -> None:
    roof = roof_of(on_device(**given, devices=["NVIDIA A100-SXM4-40GB"]))
    assert roof is not None
    assert roof.flops_per_s == tera * 1e12
    assert roof.bytes_per_s == 1555e9
    assert "NVIDIA A100-SXM4-40GB" in roof.source


@pytest.mark.parametrize(("threads", "giga"), [(1, 50), (4, 50), (8, 300), (None, 300)])
def test_the_roof_of_a_host_is_what_was_measured_there_with_its_threads(
    threads: int | None, giga: float
) -> None:
    peak.keep_peaks("here", PEAKS)
    roof = roof_of(on_host("here", threads))
    assert roof is not None
    assert roof.flops_per_s == giga * 1e9
    assert "A processor" in roof.source
    assert roof_of(on_host("elsewhere", threads)) is None


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"here": [{"threads": "x"}]}', b"\xff"])
def test_a_damaged_file_of_peaks_is_as_none(kept: Path, damage: bytes) -> None:
    kept.parent.mkdir()
    kept.write_bytes(damage)
    assert peak.kept_peaks("here") == []
    peak.keep_peaks("here", PEAKS)
    assert peak.kept_peaks("here") == PEAKS


@pytest.mark.parametrize("torch", [True, False])
def test_a_peak_is_measured_with_pytorch_or_numpy(
    monkeypatch: pytest.MonkeyPatch, torch: bool
) -> None:
    if torch:
        framework = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
        monkeypatch.setattr(framework, "set_num_threads", lambda number: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if torch else None)
    for name, value in (("_ROWS", 64), ("_COPIED", 1 << 16), ("_SECONDS", 0.01)):
        monkeypatch.setattr(peak, name, value)
    found = json.loads(peak.measured(1))
    assert found["by"].startswith("torch" if torch else "numpy")
    assert found["threads"] == 1
    assert 1e6 < found["flops_per_s"] < 1e14
    assert 1e6 < found["bytes_per_s"] < 1e14


@pytest.mark.slow
def test_doctor_measures_the_peak_keeps_it_and_shows_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peak, "_PROGRAM", SMALL)
    assert cli.run(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["peaks"] == []
    assert cli.run(["doctor", "--peak", "--json"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)["peaks"]
    assert "a matrix product and a copy with 1 thread" in said.err
    assert found[0]["threads"] == 1
    assert found[0]["cpu"] == describe_environment()["cpu"]
    assert cli.run(["doctor"]) == 0
    assert "GFLOP/s" in capsys.readouterr().out
    roof = roof_of(on_host(describe_environment()["host_id"]))
    assert roof is not None
    assert roof.flops_per_s == max(each["flops_per_s"] for each in found)
