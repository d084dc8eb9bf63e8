"""`pytest --xsp` and its fixtures, in sessions of pytest of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import xsp

pytestmark = pytest.mark.slow  # each starts a session

TESTS = """
import time

import pytest
import xsp


@pytest.mark.parametrize("name", ["a", "b/c"])
def test_quick(name):
    with xsp.span("quick work"):
        pass


def test_slow():
    with xsp.span("slow work"):
        time.sleep(0.05)


def test_fails():
    assert False


def test_measures(xsp_measure):
    assert xsp_measure(time.sleep, 0.001, levels=1, runs=5).root.latency_ns > 1e6
    xsp_measure(time.sleep, 0.001, levels=1, runs=5)


def test_profiles_by_itself():
    with pytest.raises(xsp.MeasurementError):
        with xsp.profile():
            pass
"""

BASELINE = """
import os
import time


def test_no_slowdown(xsp_measure, assert_not_slower):
    seconds = float(os.environ["SECONDS"])
    trace = xsp_measure(time.sleep, seconds, levels=1, runs=20)
    assert_not_slower(trace, "baselines/sleep.xsp", by="50%")
"""


def session(
    folder: Path, code: str, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(code)
    plugin = ["-p", "xsp.integration.pytest_plugin", "-p", "no:randomly", "-p", "no:cacheprovider"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *plugin, *arguments, "test_it.py"],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("workers", [(), ("-p", "xdist.plugin", "-n", "2")])
def test_each_test_has_a_trace_and_the_slowest_is_named(
    tmp_path: Path, workers: tuple[str, ...]
) -> None:
    done = session(tmp_path, TESTS, "--xsp", "--xsp-markdown", "summary.md", *workers)
    assert "1 failed, 5 passed" in done.stdout
    said = done.stdout.split("xsp: slowest tests")[1]
    assert "test_it.py::test_slow" in said.splitlines()[1]
    assert "xsp show 'xsp-traces/test_it.py-test_slow.xsp'" in said
    found = (path.name for path in (tmp_path / "xsp-traces").iterdir())
    names = {re.sub(r"(?<=\]-)[0-9a-f]{6}(?=\.xsp)", "DIGEST", name) for name in found}
    assert names == {
        "test_it.py-test_quick[a].xsp",
        "test_it.py-test_quick[b-c]-DIGEST.xsp",
        "test_it.py-test_slow.xsp",
        "test_it.py-test_fails.xsp",
        "test_it.py-test_measures.xsp",
        "test_it.py-test_measures-2.xsp",
        "test_it.py-test_profiles_by_itself.xsp",
    }
    slow = xsp.load(tmp_path / "xsp-traces" / "test_it.py-test_slow.xsp")
    assert "slow work" in slow.spans["name"].to_list()
    table = (tmp_path / "summary.md").read_text()
    assert table.startswith("### Slowest tests (xsp)\n\n| test |")
    assert "| `test_it.py::test_slow` |" in table


def test_without_the_option_nothing_is_profiled(tmp_path: Path) -> None:
    done = session(tmp_path, TESTS, "-k", "slow or measures")
    assert "2 passed" in done.stdout
    assert [path.name for path in (tmp_path / "xsp-traces").iterdir()].count(
        "test_it.py-test_slow.xsp"
    ) == 0
    refused = session(tmp_path, TESTS, "--xsp", "--xsp-levels", "everything")
    assert refused.returncode == 4
    assert "--xsp-levels" in refused.stderr
    for option, value in (("--xsp-folder", "test_it.py"), ("--xsp-markdown", "none/x.md")):
        refused = session(tmp_path, TESTS, option, value)
        assert (refused.returncode, option in refused.stderr) == (4, True)


def test_a_slowdown_fails_and_says_by_how_much(tmp_path: Path) -> None:
    missing = session(tmp_path, BASELINE, SECONDS="0.005")
    assert missing.returncode == 1
    assert "pytest --xsp-update" in missing.stdout
    assert session(tmp_path, BASELINE, "--xsp-update", SECONDS="0.005").returncode == 0
    assert (tmp_path / "baselines" / "sleep.xsp").exists()
    slower = session(tmp_path, BASELINE, SECONDS="0.03")
    assert slower.returncode == 1
    assert "latency > 50%" in slower.stdout
    assert session(tmp_path, BASELINE, SECONDS="0.001").returncode == 0
