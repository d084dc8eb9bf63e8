"""Kineto without CUPTI, in processes that xsp starts; what PyTorch's own first use would be."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from xsp.level import Kind
from xsp.matching import Pass
from xsp.provider import ModelCall
from xsp.reading.runs import interpret
from xsp.record.session import Session
from xsp.record.session.visit import PlannedVisit
from xsp_levels.framework.torch.profiler import kineto
from xsp_levels.framework.torch.provider import Torch

# Initializes Kineto as a worker does, and then has PyTorch's profiler record twice.
PROGRAM = """
import torch
from pathlib import Path
from torch.autograd.profiler import profile
from xsp_levels.framework.torch.profiler import kineto

kineto.initialize(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")
for _ in range(2):
    with profile(use_kineto=True) as recorded:
        torch.ones(4) + 1
    names = {event.name() for event in recorded.kineto_results.events()}
    assert "aten::add" in names, names
"""
LIBRARY = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"


@pytest.fixture
def initialized(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    calls: list[Path] = []
    monkeypatch.setattr(kineto, "initialize", calls.append)
    monkeypatch.setattr(kineto, "_used", [])
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    return calls


def run_as(monkeypatch: pytest.MonkeyPatch, module: str | None) -> None:
    spec = SimpleNamespace(name=module) if module else None
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__spec__=spec))


def left_alone(*, kernels: bool = False) -> bool:
    """Return whether the user's profiler was deprived by this use of Kineto."""
    before = kineto.deprived()
    with kineto.cupti_left_alone(kernels=kernels):
        return kineto.deprived() and not before


def test_kineto_leaves_cupti_alone_in_processes_of_xsp(
    initialized: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_as(monkeypatch, "xsp.measuring.target.__main__")
    assert [left_alone() for _ in range(2)] == [False, False]
    assert initialized == [LIBRARY]


@pytest.mark.parametrize("module", [None, "program.__main__"])
def test_kineto_of_the_users_own_process_is_left_as_it_is(
    initialized: list[Path], monkeypatch: pytest.MonkeyPatch, module: str | None
) -> None:
    run_as(monkeypatch, module)
    assert not left_alone()
    assert initialized == []


@pytest.mark.parametrize("version", ["2.11.0+cu130", "2.15.0"])
@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("free", [True, False])
def test_the_kernel_level_comes_before_a_profiler_of_the_users_where_only_one_can_be(
    initialized: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    kernels: bool,
    free: bool,
) -> None:
    asked = []

    @contextmanager
    def subscribed(library: str) -> Iterator[bool]:
        asked.append(library)
        yield free

    run_as(monkeypatch, None)
    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.setattr(kineto, "subscribed", subscribed)
    holds = kernels and version != "2.15.0"
    assert left_alone(kernels=kernels) == (holds and free)
    assert not left_alone(kernels=True)
    assert asked == ["libcupti.so.13"] * holds
    assert initialized == []


@pytest.mark.slow
def test_the_profiler_of_a_process_where_xsp_initialized_it_records_operators() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_a_measurement_with_kernels_says_that_the_users_profiler_sees_none(
    initialized: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def subscribed(library: str) -> Iterator[bool]:
        yield True

    run_as(monkeypatch, None)
    monkeypatch.setattr(torch, "__version__", "2.11.0")
    monkeypatch.setattr(kineto, "subscribed", subscribed)
    session = Session([Torch()], kinds=frozenset({Kind.OP, Kind.KERNEL}))
    call = ModelCall(lambda: torch.ones(2) + 1, whole_model=False)
    session.visit(PlannedVisit(Pass(frozenset({Kind.OP})), round=0), call)
    found = interpret(session.visits, session.providers)
    assert any("torch.profiler sees no kernels" in warning.message for warning in found.warnings)
    assert initialized == []
