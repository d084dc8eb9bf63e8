"""What a person sees on a terminal while xsp works."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

from xsp.measurement import status_line

pty = pytest.importorskip("pty", reason="needs a system with pseudo-terminals")

BLOCK = """
import xsp

with xsp.profile(levels=1{0}) as prof:
    with xsp.span("part"):
        pass
assert prof.trace.spans.height == 2
"""


def seen(code: str) -> tuple[str, str]:
    """Return what a program writes to a terminal by standard error, and what to standard output."""
    ours, terminal = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    command = [sys.executable, "-c", code]
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=terminal, env=env, check=True, timeout=60
        )
        os.close(terminal)
        return os.read(ours, 1 << 16).decode(), done.stdout.decode()
    finally:
        os.close(ours)


@pytest.mark.slow
def test_a_terminal_is_told_that_a_trace_is_made_unless_that_is_not_wanted() -> None:
    written, _ = seen(BLOCK.format(""))
    assert written.index("reading what was recorded") < written.index("making the trace")


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
    assert "measuring" in terminal
    assert "printed" not in terminal
    assert output.count("printed") >= 5
