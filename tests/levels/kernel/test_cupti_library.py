from __future__ import annotations

import ctypes
import importlib.util
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from xsp_levels import stub
from xsp_levels.kernel import cupti_library
from xsp_levels.kernel.cupti_library import Loaded, loaded, unavailable

MAPS = """\
7f00-7f01 r-xp 00000000 08:01 12 /site/nvidia/cu13/lib/libcudart.so.13
7f02-7f03 r-xp 00000000 08:01 13 /site/nvidia/cu13/lib/libcupti.so.13
7f04-7f05 r-xp 00000000 08:01 14 /usr/lib/libc.so.6
"""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A machine on which everything is well, until a test says otherwise."""
    here = SimpleNamespace(
        python=True, driver=(13, 2), loaded=Loaded(None, 13, None), installed=13, maps=MAPS
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
    monkeypatch.setattr(cupti_library, "_installed_major", lambda: here.installed)
    return here


def test_loaded_versions_are_read_from_the_maps() -> None:
    assert loaded(MAPS) == Loaded(13, 13, "/site/nvidia/cu13/lib/libcupti.so.13")
    assert loaded("") == Loaded(None, None, None)


@pytest.mark.usefixtures("machine")
def test_nothing_is_said_where_all_is_well() -> None:
    assert unavailable() is None


def test_a_missing_binding_is_named_with_the_version_to_install(machine: SimpleNamespace) -> None:
    machine.python = None
    reason = unavailable()
    assert reason is not None
    assert "xsp[cuda]" in reason
    assert "cupti-python==13.*" in reason


def test_a_missing_driver_is_named(machine: SimpleNamespace) -> None:
    machine.driver = None
    assert "libcuda" in (unavailable() or "")


def test_a_driver_older_than_cupti_is_named(machine: SimpleNamespace) -> None:
    machine.driver = (12, 4)
    reason = unavailable() or ""
    assert "12.4" in reason
    assert "cupti-python==12.*" in reason


@pytest.mark.parametrize("cupti", [12, None])
def test_a_cupti_of_another_cuda_is_named(machine: SimpleNamespace, cupti: int | None) -> None:
    machine.loaded = Loaded(cupti, 13, None)
    machine.installed = 12
    assert "cupti-python==13.*" in (unavailable() or "")


def test_another_processor_is_named(
    machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert unavailable() == stub.unsupported()
    assert "riscv64" in (unavailable() or "")


def test_nothing_is_raised_whatever_the_machine_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise OSError("no /proc")

    monkeypatch.setattr(cupti_library, "_python_missing", broken)
    assert "no /proc" in (unavailable() or "")


def test_cuda_is_not_initialized(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []

    class Driver:
        def __getattr__(self, name: str) -> Any:
            called.append(name)
            return lambda *_: 0

    monkeypatch.setattr(ctypes, "CDLL", lambda *_: Driver())
    cupti_library.driver_version()
    assert called == ["cuDriverGetVersion"]
