"""The rules of conftest.py fail when they should: tests of the tests' own guard."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = (Path(__file__).parent / "conftest.py").read_text(encoding="utf-8")
QUIET = ("-p", "no:randomly", "-p", "no:cacheprovider", "-p", "no:cov", "-q", "-rA")

BODY = """
import os, socket, sys, threading
import pytest

KEPT = []

def test_tidy():
    with socket.socket(): pass

def test_environment():
    os.environ["LEFT"] = "1"

def test_profile():
    sys.setprofile(lambda *a: None)

def test_trace():
    sys.settrace(lambda *a: None)

def test_thread():
    threading.Thread(target=threading.Event().wait, daemon=True).start()

def test_descriptor(tmp_path):
    saved = os.dup(2)
    os.dup2(os.open(tmp_path / "log", os.O_CREAT | os.O_WRONLY), 2)

def test_socket():
    KEPT.append(socket.socket())

def test_skip():
    pytest.skip("needs something")

@pytest.mark.gpu
def test_skip_of_a_gpu():
    pytest.skip("needs a GPU")
"""

CI_BODY = """
import socket
import pytest

KEPT = []

@pytest.fixture(scope="module")
def server():
    KEPT.append(socket.socket())

def test_skip():
    pytest.skip("needs something")

@pytest.mark.gpu
def test_skip_of_a_gpu():
    pytest.skip("needs a GPU")

@pytest.mark.slow
def test_slow(): pass

@pytest.mark.slow
def test_as_slow(): pass

def test_last(server): pass
"""


def _run(folder: Path, body: str, ci: str, *options: str) -> str:
    """Return what pytest says of tests in a process of their own."""
    (folder / "conftest.py").write_text(CONFTEST.replace("CLOSING_S = 2.0", "CLOSING_S = 0.1"))
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  gpu: needs one\n  slow: is it\n")
    (folder / "test_body.py").write_text(body)
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", *QUIET, *options],
        cwd=folder,
        env={**os.environ, "CI": ci, "COLUMNS": "500"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == pytest.ExitCode.TESTS_FAILED, finished.stdout + finished.stderr
    return finished.stdout


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    return _run(tmp_path_factory.mktemp("here"), BODY, "")


@pytest.fixture(scope="module")
def said_in_ci(tmp_path_factory: pytest.TempPathFactory) -> str:
    return _run(tmp_path_factory.mktemp("ci"), CI_BODY, "true", "-n", "1", "-m", "not slow")


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("environment", "environment (LEFT)"),
        ("profile", "sys.setprofile"),
        ("trace", "sys.settrace"),
        ("thread", "threads"),
        ("socket", "open sockets (socket:"),
    ],
)
def test_what_a_test_leaves_behind_is_named(said: str, name: str, left: str) -> None:
    test = f"test_body.py::test_{name}"
    assert f"PASSED {test}\n" in said
    assert f"ERROR {test} - Failed: test_{name} left behind: {left}" in said


def test_a_redirected_descriptor_is_named(said: str) -> None:
    failed = "FAILED test_body.py::test_descriptor - Failed: test_descriptor left behind: "
    assert failed + "redirected descriptor 2" in said


def test_a_tidy_test_passes(said: str) -> None:
    assert "PASSED test_body.py::test_tidy\n" in said
    assert "ERROR test_body.py::test_tidy" not in said


def test_what_a_fixture_of_a_module_leaves_open_fails_the_last_test(said_in_ci: str) -> None:
    left = "fixtures left behind: open sockets (socket:"
    assert f"ERROR test_body.py::test_last - Failed: {left}" in said_in_ci


def test_a_skip_is_one_where_it_is_not_ci(said: str) -> None:
    assert "SKIPPED [1]" in said
    assert "FAILED test_body.py::test_skip" not in said


def test_ci_fails_on_a_skip_unless_it_lacks_the_hardware(said_in_ci: str) -> None:
    assert "FAILED test_body.py::test_skip - " in said_in_ci
    assert "skipped in CI, which has what it needs: Skipped: needs something" in said_in_ci
    assert "FAILED test_body.py::test_skip_of_a_gpu" not in said_in_ci


def test_slow_tests_that_were_left_out_are_counted_whichever_process_ran_the_others(
    said_in_ci: str,
) -> None:
    assert "2 slow tests were left out: `make test-all` runs them as well." in said_in_ci
