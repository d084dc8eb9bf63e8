"""Progress on a terminal while xsp works."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

from xsp.progress import progress_bar, status_line

pty = pytest.importorskip("pty", reason="needs a system with pseudo-terminals")

BLOCK = """
import xsp

with xsp.profile(levels=1{0}) as prof:
    with xsp.span("part"):
        pass
assert prof.trace.spans.height == 2
"""


def seen(code: str) -> tuple[str, str]:
    """Run a program with standard error on a terminal, and read both outputs."""
    ours, terminal = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    command = [sys.executable, "-c", code]
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=terminal, env=env, check=True, timeout=60
        )
        os.close(terminal)
        return b"".join(iter(lambda: _some(ours), b"")).decode(), done.stdout.decode()
    finally:
        os.close(ours)


def _some(terminal_end: int) -> bytes:
    try:
        return os.read(terminal_end, 1 << 16)
    except OSError:  # all that was written to the terminal has been read
        return b""


@pytest.mark.slow
def test_a_terminal_is_told_that_a_trace_is_made_unless_that_is_not_wanted() -> None:
    written, _ = seen(BLOCK.format(""))
    assert "making the trace" in written


def test_a_terminal_that_is_gone_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def isatty(self) -> bool:
            return True

        def write(self, _words: str) -> int:
            raise OSError("the terminal was closed")

    monkeypatch.setattr(sys, "stderr", Gone())
    done = []
    with status_line(None, "making the trace"):
        done.append(True)
    assert done


@pytest.mark.slow
@pytest.mark.parametrize("wanted", ["False", "lambda fraction: None"])
def test_nothing_is_drawn_for_who_asks_for_nothing_or_draws_it_himself(wanted: str) -> None:
    code = "import os; os.write(2, b'begun')" + BLOCK.format(f", progress={wanted}")
    assert seen(code) == ("begun", "")


@pytest.mark.slow
def test_what_a_function_prints_goes_where_it_would_go_without_a_bar() -> None:
    terminal, output = seen(
        "import xsp; xsp.measure(lambda: print('printed'), levels=1, runs=5, progress=None)"
    )
    assert "xsp" not in output
    assert "\x1b" in terminal
    assert "printed" not in terminal
    assert output.count("printed") >= 5


def test_a_log_has_a_line_in_the_first_second_and_one_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, log = [0.0], io.StringIO()
    monkeypatch.setattr("xsp.progress.time.monotonic", lambda: now[0])
    monkeypatch.setattr(sys, "stderr", log)
    with progress_bar(None, "resnet18") as report:
        report.say("loading torch")
        for tenth in range(300):
            now[0] = tenth / 10
            report(tenth / 300)
    assert log.getvalue().splitlines() == [
        "xsp: resnet18: loading torch, 3% ...",
        "xsp: resnet18: loading torch, 37% ...",
        "xsp: resnet18: loading torch, 70% ...",
    ]


def test_quick_work_leaves_no_line_in_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    with progress_bar(None, "add") as report, status_line(None, "merging"):
        report.say("measuring")
        report(0.5)
    assert log.getvalue() == ""
