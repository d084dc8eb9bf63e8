from __future__ import annotations

import fcntl
import io
import json
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
from xsp.analyses import layer_latency
from xsp.cli import app as cli
from xsp.cli import terminal
from xsp.cli.answer.prose import advised
from xsp.cli.answer.table import drawn

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
    assert (blank, unknown) == ("", "no values here: group, phase, device, serialised")


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


def test_a_table_is_printed_and_saved_whole_in_other_formats(
    file: str, tmp_path: Path, capsys: Said
) -> None:
    saved = {}
    for suffix, read in (
        (".csv", pl.read_csv),
        (".json", pl.read_json),
        (".parquet", pl.read_parquet),
    ):
        to = tmp_path / f"layers{suffix}"
        assert cli.run(["analyze", file, "A3", "-o", str(to)]) == 0
        saved[suffix] = read(to)
    assert saved[".csv"].shape == saved[".parquet"].shape == saved[".json"].shape
    assert saved[".csv"]["own_ns"].sum() == saved[".parquet"]["own_ns"].sum()
    assert cli.run(["analyze", file, "A3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["index"] == 1
    assert cli.run(["analyze", file, "A3", "--csv"]) == 0
    assert capsys.readouterr().out.startswith("index,group,phase,layer")


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
        (["layr-latency"], "The order is: xsp analyze FILES... [NAME]"),
        (["layer-latency", "A4"], "layer-latency and A4 are two analyses: ask one at a time"),
        (["layer-latency", "--sort", "speed"], "there is no column speed; there are index, group"),
        (["layer-latency", "--sort", "latncy"], "did you mean latency"),
        (["layer-latency", "-o", "layers.txt"], "has to end in .csv, .json, .parquet or .html"),
        (["missing.xsp", "layer-latency"], "there is no file missing.xsp"),
    ],
)
def test_wrong_use_says_what_to_do(
    file: str, arguments: list[str], said: str, capsys: Said
) -> None:
    assert cli.run(["analyze", file, *arguments]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def kernels(count: int = 2) -> pl.DataFrame:
    """Return a table as that of kernels by name, with names that no terminal has room for."""
    name = "cutlass_80_tensorop_bf16_s16816gemm_{}_relu_bf16_256x128_64x3_tn_align2"
    return pl.DataFrame(
        {
            "kernel": [name.format(number) for number in range(count)],
            "full_name": [f"void {name.format(number) * 4}()" for number in range(count)],
            "count": [17] * count,
            "latency_ns": [98_700.0] * count,
            "read_bytes": [11_428_000] * count,
            "flops_per_byte": [90.8] * count,
            "known_pct": [100.0] * count,
            "work_source": ["analytical"] * count,
        }
    )


@pytest.mark.parametrize(
    ("width", "left_out"),
    [
        (80, "full name, flops per byte, known %, work source"),
        (100, "full name, work source"),
        (140, "full name"),
    ],
)
def test_a_wide_table_keeps_names_readable_and_loses_whole_columns_from_the_right(
    width: int, left_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "width", lambda: width)
    head, first, _, blank, *note = drawn(kernels()).splitlines()
    assert head.split()[:3] == ["kernel", "count", "latency"]
    assert "…" not in head
    name, count, *_ = first.split()
    assert len(name) >= 40
    assert count == "17"
    assert "98.7 µs" in first
    assert blank == ""
    assert " ".join(note) == (
        f"left out for want of room: {left_out} (wider terminal, --csv or -o FILE has all)"
    )
    assert all(len(line) <= width for line in (head, first, *note))


def test_the_column_that_sorts_stays_in_a_table_that_is_too_wide(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(terminal, "width", lambda: 80)
    head = drawn(kernels(), "known_pct").splitlines()[0]
    assert "known %" in head
    assert "latency" in head


def test_numbers_are_not_cut_on_a_terminal_where_a_name_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(terminal, "width", lambda: 30)
    head, first, *_ = drawn(kernels(9)).splitlines()
    assert head.split() == ["kernel", "latency"]
    assert first.endswith("  98.7 µs")
    assert len(first) <= 30


@pytest.mark.parametrize("width", [80, 100, 140])
def test_a_table_fits_the_terminal_that_it_is_printed_on(file: str, width: int) -> None:
    lines = on_a_terminal(width, "analyze", file, "kernel-information", "--rows", "4")
    assert lines[0].split()[:2] == ["index", "kernel"]
    assert "latency" in lines[0]
    assert all(len(line) <= width for line in lines)
    assert any(line.startswith("left out for want of room: path") for line in lines)


def on_a_terminal(width: int, *arguments: str) -> list[str]:
    """Return what xsp prints on a terminal of so many columns."""
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


def test_columns_say_how_wide_printed_tables_are_where_there_is_no_terminal(
    file: str, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.run(["analyze", file, "layer-latency", "--rows", "2"]) == 0
    assert all(len(line) <= 80 for line in capsys.readouterr().out.splitlines())
    monkeypatch.setenv("COLUMNS", "wide")
    assert terminal.width() == terminal.UNBOUNDED


@pytest.mark.parametrize("by", ["own", "OWN", "own_ns", "share %", "share", "share-pct"])
def test_a_table_is_sorted_by_a_heading(file: str, by: str, capsys: Said) -> None:
    assert cli.run(["analyze", file, "layer-latency", "--csv", "--sort", by]) == 0
    table = pl.read_csv(io.StringIO(capsys.readouterr().out))
    column = "share_pct" if by.startswith("share") else "own_ns"
    assert table[column].to_list() == sorted(table[column], reverse=True)


def test_the_name_of_an_analysis_may_stand_before_the_files(
    file: str, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.run(["analyze", file, "layer-latency", "--csv"]) == 0
    after = capsys.readouterr().out
    assert cli.run(["analyze", "layer-latency", file, "--csv"]) == 0
    assert capsys.readouterr().out == after
    monkeypatch.chdir(Path(file).parent)
    Path(file).rename("layer-latency")  # a file is a file, whatever its name
    assert cli.run(["analyze", "layer-latency", "A3", "--csv"]) == 0
    assert capsys.readouterr().out == after


def test_of_several_files_only_analyses_of_several_are_listed(file: str, capsys: Said) -> None:
    assert cli.run(["analyze", file, file]) == 0
    said = capsys.readouterr().out
    assert "How quick is the model, and at which batch size?" in said
    assert "layer-latency" not in said
    joined = f"xsp import {file} {file} -o ranks.xsp"
    assert joined in said
    assert cli.run(["analyze", file, file, "verdict"]) == 2
    assert (
        f"verdict is of one trace, and there are 2. Recordings of ranks are joined by: {joined}"
        in (" ".join(capsys.readouterr().err.split()))
    )


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


def test_advice_on_nothing_says_so(file: str, capsys: Said) -> None:
    from xsp.analyses import advice  # noqa: PLC0415

    empty = advice(trace(resnet(), name="resnet")).head(0)
    assert "nothing was found" in advised(empty)
    assert cli.run(["analyze", file, "advice", "--csv"]) == 0
    assert capsys.readouterr().out.startswith("trace,rule,advice,gain_ns")


def test_a_table_goes_through_a_pipe_as_parquet_and_not_to_a_terminal(
    file: str, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.run(["analyze", file, "A3", "--parquet"]) == 0
    sys.stdout.flush()
    piped = pl.read_parquet(io.BytesIO(capfdbinary.readouterr().out))
    assert piped.equals(layer_latency(xsp.load(file)))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert cli.run(["analyze", file, "A3", "--parquet"]) == 2
    assert b"say -o FILE.parquet" in capfdbinary.readouterr().err
