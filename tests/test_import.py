"""Importing xsp is light: nothing heavy is loaded, and it takes a moment."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "torchvision", "plotly", "polars", "numpy", "pandas", "rich", "opentelemetry.sdk")
BAR_S = 0.15


def _python(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_import_loads_nothing_heavy() -> None:
    loaded = _python("import sys, xsp; print(*sys.modules)").split()
    assert "xsp" in loaded
    assert [name for name in HEAVY if name in loaded] == []


def test_a_span_needs_nothing_heavy_either() -> None:
    code = "import sys, xsp\nwith xsp.span('x', level=2): pass\nprint(*sys.modules)"
    loaded = _python(code).split()
    assert [name for name in HEAVY if name in loaded] == []


@pytest.mark.parametrize("module", ["xsp_levels.model", "xsp_levels.framework.torch.provider"])
def test_importing_a_provider_does_not_import_its_vendor(module: str) -> None:
    loaded = _python(f"import sys, {module}; print(*sys.modules)").split()
    assert "torch" not in loaded


@pytest.mark.timing
def test_import_is_quick() -> None:
    code = "from time import perf_counter as t; a = t(); import xsp; print(t() - a)"
    assert min(float(_python(code)) for _ in range(5)) <= BAR_S
