from __future__ import annotations

import ctypes
import importlib.util
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from xsp_levels.kernel.cupti import library as cupti_library
from xsp_levels.kernel.cupti.library import LoadedLibraries, unavailable
from xsp_levels.native import stub

INSTALL = 'pip install --no-deps "cupti-python=='


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A machine on which everything is well, until a test says otherwise."""
    here = SimpleNamespace(
        python=True,
        driver=(13, 2),
        loaded=LoadedLibraries({}, 13),
        versions={"cupti-python": "13.2.0"},
    )
    find = importlib.util.find_spec

    def found(name: str, package: str | None = None) -> Any:
        return here.python if name == "cupti" else find(name, package)

    monkeypatch.delitem(sys.modules, "cupti", raising=False)
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(importlib.util, "find_spec", found)
    monkeypatch.setattr(cupti_library, "driver_version", lambda: here.driver)
    monkeypatch.setattr(cupti_library, "loaded", lambda: here.loaded)

    def version(name: str) -> str | None:
        return here.versions.get(name)

    monkeypatch.setattr(cupti_library, "_version_of", version)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    return here


@pytest.mark.usefixtures("machine")
def test_nothing_is_said_where_all_is_well() -> None:
    assert unavailable() is None


def test_a_missing_binding_is_named_with_the_version_to_install(machine: SimpleNamespace) -> None:
    machine.python = None
    reason = unavailable()
    assert reason is not None
    assert f"{INSTALL}13.*" in reason


@pytest.mark.parametrize(
    ("loaded", "versions", "torch", "shown"),
    [
        (13, {"nvidia-cuda-cupti": "13.2.86"}, None, "13.2"),
        (12, {"nvidia-cuda-cupti": "13.2.86", "nvidia-cuda-cupti-cu12": "12.8.90"}, None, "12.8"),
        (None, {}, "12.6", "12.6"),
        (None, {}, None, "13"),
        (13, {}, "12.6", "13"),
    ],
)
def test_the_binding_to_install_is_that_of_the_cuda_that_is_here(
    machine: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    loaded: int | None,
    versions: dict[str, str],
    torch: str | None,
    shown: str,
) -> None:
    machine.python, machine.versions = None, versions
    machine.loaded = LoadedLibraries({}, loaded)
    framework = SimpleNamespace(version=SimpleNamespace(cuda=torch))
    monkeypatch.setitem(sys.modules, "torch", framework)
    assert f'{INSTALL}{shown}.*" pyelftools' in (unavailable() or "")


def test_a_missing_driver_is_named(machine: SimpleNamespace) -> None:
    machine.driver = None
    assert "libcuda" in (unavailable() or "")


def test_a_driver_older_than_cupti_is_named(machine: SimpleNamespace) -> None:
    machine.driver = (12, 4)
    reason = unavailable() or ""
    assert "12.4" in reason
    assert f"{INSTALL}12.*" in reason


def test_a_cupti_of_another_cuda_is_named(machine: SimpleNamespace) -> None:
    machine.versions = {"cupti-python": "12.8.0", "nvidia-cuda-cupti": "13.2.86"}
    assert f"{INSTALL}13.2.*" in (unavailable() or "")


def test_another_processor_is_named(
    machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert unavailable() == stub.unsupported()
    assert "riscv64" in (unavailable() or "")


def test_cuda_is_not_initialized(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []

    class Driver:
        def __getattr__(self, name: str) -> Any:
            called.append(name)
            return lambda *_: 0

    monkeypatch.setattr(ctypes, "CDLL", lambda *_: Driver())
    cupti_library.driver_version()
    assert called == ["cuDriverGetVersion"]
