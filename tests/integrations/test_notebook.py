"""Magics in an IPython shell, as `%load_ext xsp` registers them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

import xsp
from xsp.integration import jupyter


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    without_history = Config({"HistoryManager": {"enabled": False}})
    made: Any = InteractiveShell(config=without_history)  # type: ignore[no-untyped-call]
    made.run_line_magic("load_ext", "xsp")
    return made


CELL = """
import torch
model = torch.nn.Linear(4, 4).eval()
with torch.inference_mode():
    for _ in range(5):
        y = model(torch.ones(2, 4))
"""


def test_a_cell_is_profiled_and_its_names_stay(shell: Any) -> None:
    result = shell.run_cell(f"%%xsp --levels layers -o cell.xsp\n{CELL}").result
    assert "Linear" in result.tree()
    assert "<table" in result._repr_html_() or "<div" in result._repr_html_()
    assert shell.user_ns["y"].shape == (2, 4)
    assert xsp.load("cell.xsp").spans.equals(result.spans)


def test_an_expression_is_measured_in_the_users_names(shell: Any) -> None:
    shell.run_cell("numbers = list(range(100))")
    trace = shell.run_cell("%xsp --levels 1 --budget 0.2 sum(numbers)").result
    assert trace.root.latency_ns > 0


def test_the_report_is_shown_in_a_frame(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(
        jupyter, "display", lambda data, **options: shown.append(data["text/html"][:200])
    )
    shell.run_cell("%xsp --levels 1 --budget 0.2 --report sum([1])")
    assert [page.startswith("<iframe") and "&lt;html" in page for page in shown] == [True]


@pytest.mark.parametrize("error", ["raise KeyboardInterrupt", "1 / 0", "for"])
def test_nothing_stays_behind_after_an_interrupt_or_error(shell: Any, error: str) -> None:
    result = shell.run_cell(f"%%xsp\n{error}")
    assert result.result is None
    with xsp.profile(levels=1) as prof, xsp.span("free again"):
        pass
    assert "free again" in prof.trace.tree()


@pytest.mark.parametrize(
    ("line", "said"),
    [("%%xsp\nawait x", "cannot await"), ("%xsp --levels 77 x", "Unknown level '77'")],
)
def test_what_it_cannot_do_is_said_in_a_line(
    shell: Any, line: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.run_cell(line)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("line", ["%xsp", "%xsp --level 2 x", "%xsp -o", "%%xsp x + 1\npass"])
def test_wrong_lines_say_how_to_use_it(
    shell: Any, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.run_cell(line)
    assert "%%xsp [--levels LEVELS]" in capsys.readouterr().err
