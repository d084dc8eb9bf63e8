"""Nsight Compute's own reports, through a stand-in for NVIDIA's package that reads them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import xsp

KERNEL: Mapping[str, Any] = {
    "gpu__time_duration.sum": (84480.125, "ns"),
    "launch__grid_dim_x": (16384.0, "block"),
    "launch__grid_dim_y": (1.0, "block"),
    "launch__grid_dim_z": (1.0, "block"),
    "launch__block_dim_x": (256.0, "block"),
    "launch__block_dim_y": (1.0, "block"),
    "launch__block_dim_z": (1.0, "block"),
    "launch__stream_id": (14.0, ""),
    "launch__device_id": (0.0, ""),
    "launch__func_cache_config": ("cudaFuncCachePreferNone", ""),
    "lts__t_sector_hit_rate.pct": (12.345, "%"),
    "sm__never.sum": (None, ""),
}


class Metric:
    def __init__(self, value: object, unit: str) -> None:
        self._value, self._unit = value, unit

    def value(self) -> object:
        return self._value

    def unit(self) -> str:
        return self._unit

    def has_value(self) -> bool:
        return self._value is not None


class Action:
    NameBase_DEMANGLED = 1

    def __init__(self, metrics: Mapping[str, Any], kind: int = 0) -> None:
        self._metrics = {name: Metric(*told) for name, told in metrics.items()}
        self._kind = kind

    def name(self, base: int) -> str:
        assert base == self.NameBase_DEMANGLED
        return "void daxpy<double>(int, double*)"

    def workload_type(self) -> int:
        return self._kind

    def metric_names(self) -> Iterator[str]:
        return iter(self._metrics)

    def metric_by_name(self, name: str) -> Metric | None:
        return self._metrics.get(name)


class Report:
    def __init__(self, *actions: Action) -> None:
        self._actions = actions

    def num_ranges(self) -> int:
        return 1

    def range_by_idx(self, place: int) -> tuple[Action, ...]:
        assert place == 0
        return self._actions


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "daxpy.ncu-rep"
    path.write_bytes(b"NVR\0rest")
    return path


def install(monkeypatch: pytest.MonkeyPatch, answer: Report | Exception) -> None:
    library = ModuleType("ncu_report")

    def load_report(path: str) -> Report:
        assert Path(path).exists()
        if isinstance(answer, Exception):
            raise answer
        return answer

    library.load_report = load_report  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ncu_report", library)


def test_kernels_of_a_report_have_sizes_and_metrics(
    monkeypatch: pytest.MonkeyPatch, report: Path
) -> None:
    install(monkeypatch, Report(Action(KERNEL), Action(KERNEL, kind=2)))
    trace = xsp.load(report)
    (kernel,) = trace.children(trace.root)
    assert (trace.name, kernel.name) == ("daxpy", "daxpy")
    assert kernel.latency_ns == 84480
    told = kernel.attributes
    assert (told["grid"], told["block"]) == ([16384, 1, 1], [256, 1, 1])
    assert kernel.stream == 14
    assert told["ncu.lts__t_sector_hit_rate.pct"] == 12.345
    assert told["ncu.launch__func_cache_config"] == "cudaFuncCachePreferNone"
    assert "ncu.sm__never.sum" not in told


def test_a_report_without_the_package_names_it(
    monkeypatch: pytest.MonkeyPatch, report: Path
) -> None:
    monkeypatch.setitem(sys.modules, "ncu_report", None)
    with pytest.raises(xsp.TraceFormatError, match=r"xsp\[ncu\].*--page raw --import daxpy"):
        xsp.load(report)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (RuntimeError("damaged"), "damaged"),
        (Report(), "no single kernel"),
        (Report(Action(KERNEL, kind=1)), "--replay-mode"),
    ],
)
def test_reports_that_give_nothing_say_why(
    monkeypatch: pytest.MonkeyPatch, report: Path, answer: Report | Exception, reason: str
) -> None:
    install(monkeypatch, answer)
    with pytest.raises(xsp.TraceFormatError, match=reason):
        xsp.load(report)
