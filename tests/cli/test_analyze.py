from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import polars as pl
import pytest
from samples import op, pipeline, resnet, trace

import xsp
import xsp.plot
from xsp.analyses import layer_latency
from xsp.answer.analyses import FORMER
from xsp.show.cli import app as cli
from xsp.show.cli import terminal
from xsp.show.cli.answer.analyze import advised
from xsp.show.cli.answer.table import drawn as table_of

Said = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def no_width_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tables be as wide as they need; pytest's workers say a width."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(trace(resnet(), name="resnet").save(tmp_path / "resnet.xsp"))


def test_without_a_name_it_says_what_can_be_asked(file: str, tmp_path: Path, capsys: Said) -> None:
    assert cli.run(["analyze", file]) == 0
    assert "Which layers take the time?" in capsys.readouterr().out
    bare = trace(pipeline("predict", op("aten::add")), name="bare").save(tmp_path / "bare.xsp")
    assert cli.run(["analyze", str(bare)]) == 0
    assert "the trace bare has no layers: measure with levels=2" in capsys.readouterr().out


def test_a_table_is_printed_with_units_sorted_and_cut(file: str, capsys: Said) -> None:
    assert cli.run(["analyze", file, "layer-latency", "--sort", "own_ns", "--rows", "2"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[:6] == ["index", "layer", "type", "layer", "type", "calls"]
    *rows, blank, unknown = rows
    assert len(rows) == 2
    assert all("ms ± 1 %" in row or "µs ± 1 %" in row for row in rows)
    assert (blank, unknown) == ("", "no values here: group, phase, device, synchronous")


def test_a_table_that_is_too_wide_has_no_paths_or_has_its_columns_as_lines(
    file: str, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "width", lambda: 80)
    assert cli.run(["analyze", file, "layer-latency", "--rows", "2"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert "path" not in head
    assert all(len(row) <= 80 for row in rows)
    monkeypatch.setattr(terminal, "width", lambda: 30)
    assert cli.run(["analyze", file, "model-information"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["model", "resnet"]
    assert lines[1].split()[0] == "latency"


def test_the_picture_of_a_table_is_saved(
    file: str, tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = tmp_path / "layers.html"
    assert cli.run(["analyze", file, "A3", "-o", str(to)]) == 0
    assert "Which layers take the time?" in to.read_text()
    monkeypatch.setattr("xsp.plot.picture_of", lambda analysis: None)
    assert cli.run(["analyze", file, "A3", "-o", str(to)]) == 2
    assert "layer-latency has no picture" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["layer-latncy"], "did you mean layer-latency"),
        (["layr-latency"], "Use: xsp analyze [NAME] FILES..."),
        (["layer-latency", "A4"], "Several analyses are given (layer-latency, A4). Name one."),
        (
            ["layer-latency", "--sort", "speed"],
            "Unknown column 'speed'. Choose one of index,",
        ),
        (["layer-latency", "--sort", "latncy"], "did you mean latency"),
        (["layer-latency", "-o", "layers.txt"], "Unknown format (layers.txt)."),
        (["missing.xsp", "layer-latency"], "No such file: missing.xsp."),
    ],
)
def test_wrong_use_says_what_to_do(
    file: str, arguments: list[str], said: str, capsys: Said
) -> None:
    assert cli.run(["analyze", file, *arguments]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("width", [80, 100, 140])
def test_a_table_fits_the_terminal_that_it_is_printed_on(file: str, width: int) -> None:
    lines = on_a_terminal(width, "analyze", file, "kernel-information", "--rows", "4")
    assert lines[0].split()[:2] == ["index", "kernel"]
    assert "latency" in lines[0]
    assert all(len(line) <= width for line in lines)
    assert any(line.startswith("hidden for lack of space: path") for line in lines)


def on_a_terminal(width: int, *arguments: str) -> list[str]:
    """Run xsp on a terminal of so many columns, and read its output."""
    main, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    environment = {name: os.environ[name] for name in os.environ.keys() - {"COLUMNS", "LINES"}}
    command = [sys.executable, "-m", "xsp", *arguments]
    with subprocess.Popen(command, stdin=end, stdout=end, env=environment | {"TERM": "xterm"}):
        os.close(end)
        text = b"".join(iter(lambda: _some(main), b""))
    os.close(main)
    return text.decode().splitlines()


def _some(terminal_end: int) -> bytes:
    try:
        return os.read(terminal_end, 65536)
    except OSError:  # all that wrote to the terminal have ended
        return b""


@pytest.mark.parametrize("by", ["own", "OWN", "own_ns", "share %", "share", "share-pct"])
def test_a_table_is_sorted_by_a_heading(file: str, by: str, capsys: Said) -> None:
    assert cli.run(["analyze", file, "layer-latency", "--csv", "--sort", by]) == 0
    table = pl.read_csv(io.StringIO(capsys.readouterr().out))
    column = "share_pct" if by.startswith("share") else "own_ns"
    assert table[column].to_list() == sorted(table[column], reverse=True)


def test_advice_is_prose_with_what_to_run_uncut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "width", lambda: 80)
    command = "ncu --set full -k regex:'" + "|".join(["cutlass_80_wmma"] * 12) + "' python"
    row = {
        "trace": "bert",
        "rule": "kernels to count",
        "advice": "Count these kernels' memory traffic \x1b[2Jbefore changing them.",
        "gain_ns": 177_000.0,
        "gain_low_ns": 170_000.0,
        "gain_high_ns": 184_000.0,
        "gain_pct": 4.0,
        "estimate": "at most: as if these kernels took no time",
        "evidence": "57.3 % of the device's time, and nothing says what bounds them",
        "verify": command,
    }
    said = advised(pl.DataFrame([row, row | {"verify": None}]))
    assert "\x1b[2J" not in said
    lines = said.splitlines()
    assert lines[0].startswith("\x1b[1m1. Count these kernels' memory traffic")
    assert "   gain: 177 µs ± 4 %, 4.0 % of the latency; at most: as if these kernels took" in said
    assert "   57.3 % of the device's time, and nothing says what bounds them" in lines
    assert f"   To verify: {command}" in lines
    assert said.count("To verify") == 1
    assert "\x1b[1m2. Count" in said
    assert "   in bert" not in lines
    other = advised(pl.DataFrame([row, row | {"trace": "gpt2"}]))
    assert "   in gpt2" in other.splitlines()


def test_a_table_goes_through_a_pipe_as_parquet_and_not_to_a_terminal(
    file: str, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.run(["analyze", file, "A3", "--parquet"]) == 0
    sys.stdout.flush()
    piped = pl.read_parquet(io.BytesIO(capfdbinary.readouterr().out))
    assert piped.equals(layer_latency(xsp.load(file)))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert cli.run(["analyze", file, "A3", "--parquet"]) == 2
    assert b"Use -o FILE.parquet" in capfdbinary.readouterr().err


def test_the_column_that_names_the_rows_is_never_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "width", lambda: 48)
    wide = ["a layer type with a name that is far too long for this", "ReLU", "ReLU"]
    table = pl.DataFrame(
        {
            "phase": ["forward", "forward", "backward"],
            "type": wide,
            "layer_type": ["convolution", "activation", "activation"],
            "latency_ns": [3e6, 2e6, 1e6],
        }
    )
    head, first, second, third, *_ = table_of(table).splitlines()
    assert head.split() == ["phase", "type", "latency"]
    assert [row.split()[0] for row in (first, second, third)] == table["phase"].to_list()
    assert "ReLU" in second
    assert first.endswith("3.00 ms")
    assert max(map(len, (head, first, second, third))) <= 48


def test_analyses_are_found_by_the_names_of_earlier_versions(file: str, capsys: Said) -> None:
    assert cli.run(["analyze", file, "by-module", "--csv"]) == 0
    former = capsys.readouterr().out
    assert cli.run(["analyze", file, "module-latency", "--csv"]) == 0
    assert capsys.readouterr().out == former
    for name, analysis in FORMER.items():
        python = name.replace("-", "_")
        assert getattr(xsp.analyses, python) is analysis
        assert getattr(xsp.plot, python) is getattr(xsp.plot, analysis.name.replace("-", "_"))


def test_a_peak_of_ones_own_is_a_pair_of_rates(tmp_path: Path, capsys: Said) -> None:
    product = op("aten::mm")
    product.attributes = {"input_shapes": [[4, 8], [8, 16]], "input_dtypes": ["float32"] * 2}
    file = str(trace(pipeline("predict", product)).save(tmp_path / "a.xsp"))
    asked = ["analyze", "operator-roofline", file, "--csv", "--peak"]
    assert cli.run([*asked, "flops=2T, bandwidth=1.5G"]) == 0
    assert ",2000000000000.0,1500000000.0,given," in capsys.readouterr().out
    for wrong in ("2T", "flops=2X", "flops=0", "flops=1T,speed=2"):
        assert cli.run([*asked, wrong]) == 2
        assert "--peak is no peak" in capsys.readouterr().err


def test_without_files_all_questions_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["analyze"]) == 0
    said = capsys.readouterr().out
    assert "What limits the latency?" in said
    assert "Use: xsp analyze [NAME] FILES..." in said
