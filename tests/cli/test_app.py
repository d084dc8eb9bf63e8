from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import xsp
from xsp.level import Kind
from xsp.measuring.call.callable import measure
from xsp.show.cli import app as cli
from xsp.show.cli import demo, exit_code
from xsp.testing import FakeClock, FakeProvider, only_providers
from xsp.trace.document import Trace
from xsp.warning import INTERRUPTED

Write = Callable[..., str]
Said = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    yield
    sys.modules.pop("job", None)
    monkeypatch.undo()


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str, name: str = "job.py") -> str:
        (tmp_path / name).write_text(text)
        return name

    return write


@pytest.fixture
def layers() -> Iterator[FakeProvider]:
    provider = FakeProvider(FakeClock())
    with only_providers(provider):
        yield provider


@pytest.fixture
def saved(tmp_path: Path, layers: FakeProvider) -> str:
    trace = measure(lambda: sum(range(1000)), levels="model", runs=3)
    return str(trace.save(tmp_path / "saved.xsp"))


WORK = "def work(batch=1):\n    return sum(range(10_000))\n"
QUICK = ("--levels", "model", "--runs", "3", "--no-isolate")


def test_help_comes_without_heavy_imports() -> None:
    heavy = ("torch", "polars", "rich", "numpy")
    code = (
        "import sys; from xsp.show.cli import app; app.run(['profile', '--help']); "
        f"sys.exit(str([name for name in {heavy!r} if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("profile", "Missing argument 'TARGET'"),
        ("profile torchvison:resnet50", "did you mean torchvision?"),
        (
            "profile torchvision:resnet18 --levels 9",
            "Unknown level '9'. Choose 1 (model), 2 (framework: layers, ops)",
        ),
        ("profile torchvision:resnet18 --levels 0", "Unknown level '0'"),
        ("profile torchvision:resnet18 --levels gpu", "Unknown level 'gpu'"),
        ("profile torchvision:resnet18 --runs 0", "0 is not in the range x>=1"),
        ("profile torchvision:resnet18 --budget 0", "0.0 is not in the range x>0"),
        ("profile torchvision:resnet18 stray", "takes no arguments (stray)"),
        ("profile job.py:wrok --no-isolate", "did you mean work?"),
        ("profile job.py:work --train --no-isolate", "--train makes a training step of a model"),
        ("profile --batch 4 job.py", "--batch is not for a script"),
        ("profile --json job.py", "Its standard output is its own"),
        ("profile --isolate job.py", "It runs once. Give path.py:function"),
        ("profile --synchronous job.py", "It runs once. Give path.py:function"),
        ("profile job.py:work --no-isolate --synchronous", "Leave one of the two out"),
        ("profile jop.py", "did you mean job.py?"),
        ("show nothing.xsp", "does not exist"),
        ("shwo", "No such command 'shwo'; did you mean show?"),
        ("jop.py", "did you mean job.py?"),
        ("--batch 4 job.py", "--batch is not for a script"),
    ],
)
@pytest.mark.usefixtures("layers")
def test_wrong_usage_is_said_and_has_its_code(
    write: Write, capsys: Said, line: str, said: str
) -> None:
    write(WORK)
    assert cli.run(line.split()) == exit_code.USAGE
    out, err = capsys.readouterr()
    assert said in " ".join(err.split())
    assert out == ""


@pytest.mark.usefixtures("layers")
def test_a_function_is_measured_printed_and_saved(write: Write, capsys: Said) -> None:
    assert cli.run(["profile", write(WORK) + ":work", *QUICK, "--batch", "2"]) == exit_code.OK
    out, err = capsys.readouterr()
    assert "work" in out
    assert err == "saved to work.xsp; print it again with: xsp show work.xsp\n"
    trace = xsp.load("work.xsp")
    trace.check()
    assert out.strip() == str(trace)


@pytest.mark.usefixtures("layers")
def test_a_file_without_a_folder_is_refused_before_anything_is_measured(
    write: Write, capsys: Said
) -> None:
    target = write("def work():\n    print('measured')\n") + ":work"
    assert cli.run(["profile", target, *QUICK, "-o", "nowhere/m.xsp"]) == exit_code.USAGE
    out, err = capsys.readouterr()
    assert (out, "there is no folder nowhere" in err) == ("", True)


def test_isolation_is_the_default_for_a_function(
    write: Write, monkeypatch: pytest.MonkeyPatch, saved: str
) -> None:
    asked = []

    def measured(spec: Any, settings: Any, *, synchronous: bool, ending: Any) -> Trace:
        asked.append((spec.target, spec.batch, settings.runs, synchronous))
        return xsp.load(saved)

    monkeypatch.setattr("xsp.measuring.target.measure_isolated", measured)
    target = write(WORK) + ":work"
    assert cli.run(["profile", target, "--batch", "3", "--runs", "7"]) == exit_code.OK
    for option in ("--synchronous", "--synchronous"):  # as earlier versions called it
        assert cli.run(["profile", target, option]) == exit_code.OK
    assert asked == [(target, 3, 7, False), *[(target, None, None, True)] * 2]


def test_an_interrupted_measurement_is_saved_and_has_its_code(
    write: Write, monkeypatch: pytest.MonkeyPatch, saved: str, tmp_path: Path
) -> None:
    trace = xsp.load(saved)
    warning = {"code": INTERRUPTED.code, "message": "the measurement was interrupted"}
    cut = Trace(trace.spans, {**trace.metadata, "warnings": [warning]})
    monkeypatch.setattr(
        "xsp.measuring.target.measure_isolated", lambda spec, settings, **options: cut
    )
    assert cli.run(["profile", write(WORK) + ":work"]) == exit_code.INTERRUPTED
    assert (tmp_path / "work.xsp").exists()


@pytest.mark.usefixtures("layers")
def test_a_trace_that_cannot_be_saved_is_said(write: Write, capsys: Said, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    target = write("import shutil\ndef work():\n    shutil.rmtree('gone', True)\n") + ":work"
    assert cli.run(["profile", target, *QUICK, "-o", "gone/t.xsp"]) == exit_code.NOT_MEASURED
    out, err = capsys.readouterr()
    assert "there is no folder gone" in err
    assert " 100  " in out  # what cannot be saved is shown all the same


def test_doctor_names_every_level_and_why_it_is_missing(capsys: Said) -> None:
    missing = FakeProvider(FakeClock(), name="probe")
    missing.reason = "needs a probe: connect one"
    with only_providers(missing):
        assert cli.run(["doctor", "--verbose"]) == exit_code.OK
    said = capsys.readouterr().out
    for level in xsp.Level:
        assert level.label in said
    assert "needs a probe" in " ".join(said.split())
    assert "Python" in said
    assert "polars" in said


def test_doctor_says_how_well_a_level_works_here(capsys: Said) -> None:
    class Vague(FakeProvider):
        def remark(self) -> str | None:
            return "to a microsecond"

    with only_providers(Vague(FakeClock())):
        assert cli.run(["doctor", "-v"]) == exit_code.OK
        assert "yes: to a microsecond" in " ".join(capsys.readouterr().out.split())
        assert cli.run(["doctor", "--json"]) == exit_code.OK
        (line,) = json.loads(capsys.readouterr().out)["providers"]
    assert line["remark"] == "to a microsecond"


def test_doctor_is_a_few_lines_that_say_what_to_do(
    capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    missing = FakeProvider(FakeClock(), (Kind.KERNEL,), name="probe")
    missing.reason = "no probe is connected. Connect one."
    with only_providers(FakeProvider(FakeClock(), name="torch"), missing):
        assert cli.run(["doctor"]) == exit_code.OK
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 7
    assert lines[0].startswith("✓ layers, operators  PyTorch")
    assert "✗ GPU kernels        no probe is connected. Connect one." in lines
    assert lines[-1] == "details: xsp doctor --verbose"


def test_the_demo_needs_nothing(capsys: Said, tmp_path: Path) -> None:
    assert demo.TRACE.stat().st_size <= 300_000
    assert cli.run(["demo", "--rows", "12"]) == exit_code.OK
    out, err = capsys.readouterr()
    assert "training step" in out
    assert "xsp-demo.html" in err
    assert "<html" in (tmp_path / "xsp-demo.html").read_text(encoding="utf-8")


@pytest.mark.usefixtures("layers")
def test_a_target_needs_no_command(write: Write, capsys: Said) -> None:
    assert cli.run([write(WORK) + ":work", *QUICK]) == exit_code.OK
    assert "work" in capsys.readouterr().out


def piped(command: str, encoding: str = "utf-8") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m xsp {command}"],
        capture_output=True,
        encoding=encoding,
        env={**os.environ, "PYTHONIOENCODING": encoding},
        check=False,
    )


def test_a_reader_that_has_gone_is_no_error(saved: str) -> None:
    done = piped(f"show {saved} --all | true")
    assert (done.returncode, done.stderr) == (exit_code.OK, "")


def test_an_encoding_without_our_characters_is_no_error(saved: str) -> None:
    done = piped(f"show {saved}", "latin-1")
    assert (done.returncode, done.stderr) == (exit_code.OK, "")
    assert " 100  " in done.stdout


@pytest.mark.usefixtures("layers")
def test_a_script_gets_its_arguments_even_if_they_look_like_ours(
    write: Write, capsys: Said
) -> None:
    path = write("import sys\nprint(sys.argv)\nsys.exit(4)\n")
    assert cli.run(["profile", "--levels", "1", path, "--levels", "x", "-o", "y", "--"]) == 4
    out, err = capsys.readouterr()
    assert out == "['job.py', '--levels', 'x', '-o', 'y', '--']\n"
    assert "(--levels, -o went to the script: what is for xsp stands before it)" in err


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('"""Mine."""\nimport os\nA = 3\ndef classify(): pass\ndef _own(): pass\n', True),
        ("def classify(): pass\nclassify()\n", False),
    ],
    ids=["defines", "calls"],
)
@pytest.mark.usefixtures("layers")
def test_a_file_that_only_defines_functions_is_told_how_to_measure_one(
    write: Write, capsys: Said, text: str, named: bool
) -> None:
    path = write(text)
    assert cli.run(["profile", path]) == (exit_code.NOT_MEASURED if named else exit_code.OK)
    said = capsys.readouterr().err
    assert (f"only defines functions. Name one: xsp profile {path}:classify" in said) == named
    assert "_own" not in said


@pytest.mark.usefixtures("layers")
def test_a_script_that_raises_is_shown_once_and_has_code_1(write: Write, capsys: Said) -> None:
    assert cli.run(["profile", write("raise OSError('mine')\n")]) == 1
    assert capsys.readouterr().err.count("OSError: mine") == 1


EVALUATING = """
import sys, threading, torch
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval()
with torch.no_grad():
    for _ in range(int(sys.argv[1])):
        model(torch.ones(2, 8))
print("done", threading.active_count())
sys.exit(3)
"""


@pytest.mark.slow
def test_a_script_runs_as_alone_and_its_model_is_measured(write: Write, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
    command = [sys.executable, "-m", "xsp", "profile", "--budget", "3", write(EVALUATING), "9"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert done.stdout == "done 1\n"
    trace = xsp.load(tmp_path / "job.xsp")
    trace.check()
    assert trace.name == "job.py"
    assert [group["name"] for group in trace.metadata["groups"]] == ["Sequential 2×8"]
    assert {"layer", "op"} <= set(trace.spans["kind"])
    assert "saved to job.xsp" in done.stderr


SLEEPING = """
import atexit, signal, sys, time
atexit.register(print, "cleaned up", flush=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 9)])
def test_signals_reach_a_script_as_alone(write: Write, number: int, code: int) -> None:
    path = write(SLEEPING)
    ended = [signalled([sys.executable, *launcher, path], number) for launcher in LAUNCHERS]
    (alone_code, alone_out, alone_err), (our_code, our_out, our_err) = ended
    assert our_code == alone_code == code
    assert our_out == alone_out == "ready\ncleaned up\n"
    assert our_err.startswith(alone_err)
    assert "called: no model" in our_err[len(alone_err) :]


LAUNCHERS: tuple[list[str], ...] = ([], ["-m", "xsp", "profile"])


def signalled(command: list[str], number: int) -> tuple[int, str, str]:
    """Start a program, signal it once it has said `ready`, and return how it ended."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as program:
        assert program.stdout is not None
        first = program.stdout.readline()
        time.sleep(0.1)
        program.send_signal(number)
        out, err = program.communicate(timeout=60)
    return program.returncode, first + out, err


FORKING = """
import os, sys
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
sys.exit(6)
"""


@pytest.mark.slow
def test_the_child_of_a_fork_ends_as_alone_and_says_nothing(write: Write) -> None:
    command = [sys.executable, "-m", "xsp", "profile", write(FORKING)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 6
    assert done.stderr.count("called: no model") == 1


def test_file_of_that_name_is_said_to_be_replaced(write: Write, capsys: Said) -> None:
    command = ["profile", f"{write(WORK)}:work", *QUICK]
    assert cli.run(command) == exit_code.OK
    assert "saved to work.xsp" in capsys.readouterr().err
    assert cli.run(command) == exit_code.OK
    assert "it took the place of an older work.xsp" in capsys.readouterr().err


def test_what_stands_in_a_file_or_its_name_cannot_drive_the_terminal(
    saved: str, tmp_path: Path, capsys: Said
) -> None:
    evil = "\x1b]0;owned\x07\x9b2J"
    spans = xsp.load(saved).spans
    path = tmp_path / f"a{evil}.xsp"
    spans.write_parquet(path, metadata={"xsp": json.dumps({"format": evil})})
    assert cli.run(["show", str(path)]) == exit_code.NOT_MEASURED
    assert cli.run(["show", f"missing{evil}"]) == exit_code.USAGE
    metadata = {"name": evil, "warnings": [{"code": evil, "message": evil}]}
    Trace(spans.with_columns(name=pl.lit(evil)), metadata).save(path)
    assert cli.run(["show", str(path)]) == exit_code.OK
    assert cli.run(["show", str(path), "--json"]) == exit_code.OK
    out, err = capsys.readouterr()
    assert all(character.isprintable() or character == "\n" for character in out + err)
    assert json.loads(out.splitlines()[-1])["spans"][0]["name"] == evil


@pytest.mark.parametrize("option", ["-o", "--export"])
@pytest.mark.usefixtures("layers")
def test_a_folder_that_takes_no_files_is_noticed_before_anything_is_measured(
    write: Write, capsys: Said, option: str
) -> None:
    target = write("def work():\n    print('measured')\n") + ":work"
    line = ["profile", target, *QUICK, option, "/sys/a.perfetto.json"]
    assert cli.run(line) == exit_code.NOT_MEASURED
    out, err = capsys.readouterr()
    assert (out, "/sys/a.perfetto.json cannot be written" in err) == ("", True)
