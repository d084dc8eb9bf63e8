from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

import xsp
from xsp.errors import MeasurementError, TargetFailedError, UnknownTargetError
from xsp.measuring.target import here, worker
from xsp.measuring.target import isolation as isolate
from xsp.measuring.target.spec import Spec
from xsp.record.session.settings import Settings, settings_of
from xsp.testing import FakeClock, FakeProvider, only_providers
from xsp.warning import INTERRUPTED

Write = Callable[[str], Spec]

# The file notes every process that loads it; what follows may look at their number.
COUNTING = """
import os, pathlib, signal, sys, time
counter = pathlib.Path(__file__).with_name("processes")
with counter.open("a") as file:
    file.write(f"{os.getpid()}\\n")
number = counter.read_text().split().index(str(os.getpid())) + 1  # others may load at once
def work():
    return sum(range(20_000))
"""


# Python imports a `sitecustomize` when it starts; this one makes that `import torch` fails.
HIDING = """
import sys
class Hiding:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ModuleNotFoundError("hidden for this test", name=name)
sys.meta_path.insert(0, Hiding())
"""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str) -> Spec:
        (tmp_path / "job.py").write_text(COUNTING + text)
        return Spec(f"{tmp_path}/job.py:work")

    return write


@pytest.fixture
def settings() -> Settings:
    return settings_of("model", runs=3)  # in the budget of 20 s, on a busy machine too


@pytest.fixture(autouse=True)
def imports_are_restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("job", None)


@pytest.fixture
def without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide PyTorch from the children, so that they start at once."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(HIDING)
    path = [str(hidden), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))


@pytest.fixture
def two_processes(without_torch: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolate, "_PROCESSES", 2)


def processes(tmp_path: Path) -> int:
    return len((tmp_path / "processes").read_text().split())


@pytest.mark.slow
def test_every_process_measures_the_whole_ladder(tmp_path: Path, write: Write) -> None:
    told: list[float] = []
    # A long budget: of a short one, a busy machine leaves too little to compare processes.
    trace = isolate.measure_isolated(write(""), settings_of(2, runs=3, budget=30.0), told.append)
    trace.check()
    assert trace.name == "work"
    assert trace.root.latency_ns is not None
    assert processes(tmp_path) == 3
    assert trace.metadata["intervals"] == "across 3 processes"
    counts = {pass_["pass"]: pass_["runs"] for pass_ in trace.metadata["passes"]}
    assert all(counts[name] >= 9 for name in ("bare", "region", "layer", "op"))
    assert told == sorted(told)
    assert told[-1] == pytest.approx(1.0)


# Notes which process made which call.
TURNS = """
calls = counter.with_name("calls")
def work():
    with calls.open("a") as file:
        file.write(f"{number}\\n")
    time.sleep(SECONDS)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("without_torch")
def test_processes_take_turns_round_by_round(tmp_path: Path, write: Write) -> None:
    isolate.measure_isolated(write(TURNS.replace("SECONDS", "0.01")), settings_of(1, budget=2.0))
    turns = [number for number, _ in groupby((tmp_path / "calls").read_text().split())]
    assert set(turns) == {"1", "2", "3"}
    middle = turns[len(turns) // 3 : 2 * len(turns) // 3]
    assert len(middle) > 5
    assert all(len(set(middle[at : at + 3])) == 3 for at in range(len(middle) - 2))


@pytest.mark.slow
@pytest.mark.usefixtures("without_torch")
def test_a_slow_model_is_measured_in_one_process_with_the_whole_budget(
    tmp_path: Path, write: Write
) -> None:
    slow = write(TURNS.replace("SECONDS", "0.2"))
    trace = isolate.measure_isolated(slow, settings_of(1, budget=3.0))
    assert set((tmp_path / "calls").read_text().split()) == {"1"}
    assert trace.metadata["intervals"] == "within this run"
    assert 8 <= len((tmp_path / "calls").read_text().split()) <= 20


@pytest.mark.slow
@pytest.mark.usefixtures("two_processes")
def test_where_memory_has_no_room_one_process_measures_after_the_other(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolate, "_MEMORY_FRACTION", 0.0)
    trace = isolate.measure_isolated(
        write(TURNS.replace("SECONDS", "0.01")), settings_of(1, runs=5)
    )
    turns = [number for number, _ in groupby((tmp_path / "calls").read_text().split())]
    assert turns == ["1", "2"]
    assert trace.metadata["intervals"] == "across 2 processes"


@pytest.mark.slow
@pytest.mark.usefixtures("two_processes")
def test_the_trace_hangs_in_the_span_that_the_parent_was_started_in(
    tmp_path: Path, write: Write, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller, other = (f"00-{number:032x}-{number:016x}-01" for number in (1, 2))
    monkeypatch.setenv("TRACEPARENT", caller)
    monkeypatch.setenv("TRACESTATE", "vendor=1")
    code = f"os.environ['TRACEPARENT'] = {other!r}\n"
    code += "print(time.time_ns(), file=counter.with_name('started').open('a'))\n"
    before = time.time_ns()
    trace = isolate.measure_isolated(write(code), settings)
    started = int((tmp_path / "started").read_text().split()[0])
    assert trace.metadata["traceparent"] == caller
    assert trace.metadata["tracestate"] == "vendor=1"
    assert before - 50_000_000 < trace.metadata["began_unix_ns"] < started
    assert trace.typical_runs["name"].to_list() == ["work"]


@pytest.mark.slow
@pytest.mark.usefixtures("without_torch")
def test_a_process_that_is_killed_costs_its_runs_alone(tmp_path: Path, write: Write) -> None:
    spec = write("if number == 2:\n    os.kill(os.getpid(), signal.SIGKILL)\n")
    trace = isolate.measure_isolated(spec, settings_of(1, runs=5))
    messages = {warning.code: warning.message for warning in trace.warnings}
    said = messages["process-failed"]
    assert said.startswith("one of 3 processes failed; error bars are wider without it")
    assert "SIGKILL (often: out of memory)" in said
    assert trace.metadata["intervals"] == "across 2 processes"


@pytest.mark.slow
@pytest.mark.usefixtures("without_torch")
def test_what_ends_every_process_is_said_with_its_last_words(
    write: Write, settings: Settings
) -> None:
    spec = write("def work():\n    print('out of data', file=sys.stderr)\n    sys.exit(7)\n")
    with pytest.raises(MeasurementError, match="ended with exit code 7: out of data"):
        isolate.measure_isolated(spec, settings)


@pytest.mark.usefixtures("without_torch")
def test_an_exception_in_every_process_is_the_targets(write: Write, settings: Settings) -> None:
    spec = write("def work():\n    raise ValueError('no such batch')\n")
    with pytest.raises(TargetFailedError, match="ValueError: no such batch") as caught:
        isolate.measure_isolated(spec, settings)
    assert caught.value.traceback.startswith("Traceback (most recent call last):\n  File ")
    assert "job.py" in caught.value.traceback
    assert f"xsp{os.sep}" not in caught.value.traceback


@pytest.mark.usefixtures("two_processes")
def test_what_fails_before_the_measurement_is_not_tried_again(tmp_path: Path, write: Write) -> None:
    spec = write("1 / 0\n")
    with pytest.raises(TargetFailedError, match="ZeroDivisionError") as caught:
        isolate.measure_isolated(spec, settings_of(2))
    assert processes(tmp_path) == 1
    assert caught.value.traceback.count("File ") == 1


@pytest.mark.usefixtures("two_processes")
def test_an_unknown_target_is_not_tried_again(tmp_path: Path, write: Write) -> None:
    spec = write("")
    with pytest.raises(UnknownTargetError, match="did you mean work"):
        isolate.measure_isolated(Spec(spec.target.replace(":work", ":wrok")), settings_of(2))
    assert processes(tmp_path) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("without_torch")
def test_what_a_target_prints_stays_away(
    write: Write, settings: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    isolate.measure_isolated(write("print('loud')\nprint('loud', file=sys.stderr)\n"), settings)
    said = capfd.readouterr()
    assert said.out == ""
    assert all(line.startswith("xsp: ") for line in said.err.splitlines())  # what it is at


@pytest.mark.usefixtures("without_torch")
def test_a_file_in_the_working_directory_shadows_nothing(
    tmp_path: Path, write: Write, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "polars.py").write_text("raise RuntimeError('shadowed')\n")
    spec = write("sys.path.remove(sys.path[0])\n")
    isolate.measure_isolated(spec, settings).check()


@pytest.mark.slow
@pytest.mark.usefixtures("without_torch")
def test_the_trace_is_there_before_the_processes_have_ended(
    tmp_path: Path, write: Write, settings: Settings
) -> None:
    slow = "import atexit\n@atexit.register\ndef end():\n"
    slow += "    while not counter.with_name('may end').exists():\n        time.sleep(0.01)\n"
    numbers = tmp_path / "processes"
    with ExitStack() as ending:
        isolate.measure_isolated(write(slow), settings, ending=ending).check()
        assert not any(has_ended(int(number)) for number in numbers.read_text().split())
        (tmp_path / "may end").touch()
    isolate.measure_isolated(write(slow), settings).check()
    assert processes(tmp_path) == 6
    assert not any(Path(f"/proc/{number}").exists() for number in numbers.read_text().split())


@pytest.mark.slow
@pytest.mark.usefixtures("without_torch")
def test_no_folder_is_left_behind(
    tmp_path: Path, write: Write, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    isolate.measure_isolated(write(""), settings)
    with pytest.raises(UnknownTargetError):
        isolate.measure_isolated(Spec(write("").target + "x"), settings)
    assert list(folder.iterdir()) == []


def interrupted(
    tmp_path: Path,
    spec: Spec,
    levels: str,
    *options: str,
    by: signal.Signals = signal.SIGINT,
) -> tuple[int, str]:
    """Start `xsp profile`, interrupt it once the file `ready` is there, and wait for it."""
    command = [sys.executable, "-m", "xsp", "profile", spec.target, "--levels", levels]
    command += ["--runs", "3", "-o", str(tmp_path / "kept.xsp"), *options]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as one:
        wait_until((tmp_path / "ready").exists)
        one.send_signal(by)
        _, said = one.communicate(timeout=60)
    return one.returncode, said


def wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not true():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.02)


HANGING = """
def hang():
    import subprocess
    helper = subprocess.Popen(["sleep", "600"])
    counter.with_name("helper").write_text(str(helper.pid))
    counter.with_name("ready").touch()
    time.sleep(600)
"""


HANGING_LATER = """
calls = []
def work():
    calls.append(0)
    if number == 2 and len(calls) == 5:
        hang()
"""


@pytest.mark.slow
@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_process_and_keeps_what_is_complete(
    tmp_path: Path, write: Write, by: signal.Signals
) -> None:
    # The second process hangs in its fifth step, when the first has made some.
    code, said = interrupted(tmp_path, write(HANGING + HANGING_LATER), "2", by=by)
    assert code == 130
    trace = xsp.load(tmp_path / "kept.xsp")
    assert INTERRUPTED.code in {warning.code for warning in trace.warnings}
    assert trace.root.latency_ns is not None
    assert "Traceback" not in said
    # Neither the process nor what it started goes on.
    for name in ("processes", "helper"):
        pid = int((tmp_path / name).read_text().split()[-1])
        wait_until(partial(has_ended, pid))


def has_ended(pid: int) -> bool:
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True


@pytest.mark.slow
@pytest.mark.usefixtures("without_torch")
def test_an_interrupt_before_anything_is_complete_keeps_nothing(
    tmp_path: Path, write: Write
) -> None:
    code, said = interrupted(tmp_path, write(HANGING + "hang()\n"), "model")
    assert code == 130
    assert said.splitlines()[-1] == "xsp: interrupted"
    assert not (tmp_path / "kept.xsp").exists()


def test_an_interrupt_while_measuring_here_keeps_what_there_is(write: Write) -> None:
    job = "calls = []\ndef work():\n    calls.append(0)\n    if len(calls) == 9:\n        "
    spec = write(job + "os.kill(os.getpid(), signal.SIGINT)\n")
    before = signal.getsignal(signal.SIGINT)
    with only_providers(FakeProvider(FakeClock())):
        trace = here.measure_here(spec, settings_of("model", runs=500, budget=60.0))
    assert trace.warnings[0].code == INTERRUPTED.code
    assert signal.getsignal(signal.SIGINT) is before
    early = write(job.replace("9", "1") + "os.kill(os.getpid(), signal.SIGINT)\n")
    with only_providers(FakeProvider(FakeClock())):  # the first step has a tree already
        trace = here.measure_here(early, settings_of("model", runs=5))
    assert trace.root.attributes["inexact"] == ["warm_up_only", "few_samples"]


def test_measuring_here_uses_this_process(tmp_path: Path, write: Write) -> None:
    with only_providers(FakeProvider(FakeClock())):
        trace = here.measure_here(write(""), settings_of("model", runs=3, budget=1.0))
    trace.check()
    assert (tmp_path / "processes").read_text().split() == [str(os.getpid())]


def test_measuring_here_tells_the_targets_exception_apart(write: Write) -> None:
    with (
        only_providers(FakeProvider(FakeClock())),
        pytest.raises(TargetFailedError, match="ZeroDivisionError"),
    ):
        here.measure_here(write("1 / 0\n"), settings_of("model"))


# The synchronous measurement.

NOTING = """
variables = ("CUDA_LAUNCH_BLOCKING", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
with counter.with_name("variables").open("a") as file:
    file.write(" ".join(os.environ.get(name, "-") for name in variables) + "\\n")
"""


def synchronous_ns(trace: xsp.Trace) -> dict[str, float | None]:
    """Return the field of each span, by path; empty where no span has it."""
    spans = trace.spans.unnest("attributes")
    if "synchronous_ns" not in spans.columns:
        return {}
    return dict(spans.select("path", "synchronous_ns").iter_rows())


def passes(trace: xsp.Trace) -> dict[str, dict[str, Any]]:
    return {pass_["pass"]: dict(pass_) for pass_ in trace.metadata["passes"]}


@pytest.mark.slow
@pytest.mark.usefixtures("two_processes")
def test_a_synchronous_process_has_the_variables_and_climbs_the_whole_ladder(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in worker.SYNCHRONOUS:
        monkeypatch.delenv(name, raising=False)
    told: list[float] = []
    spec = write(NOTING)
    trace = isolate.measure_isolated(
        spec, settings_of("model", runs=3), told.append, synchronous=True
    )
    trace.check()
    assert (tmp_path / "variables").read_text().splitlines() == ["- - - -"] * 2 + ["1 1 1 1"]
    assert told == sorted(told)
    assert told[-1] == pytest.approx(1.0)
    assert synchronous_ns(trace) == {"work": passes(trace)["synchronous"]["latency_ns"]}
    assert passes(trace)["synchronous"]["runs"] >= 3
    assert trace.root.latency_ns != passes(trace)["synchronous"]["latency_ns"]
    assert "with one thread: " in str(trace).replace("\n  ", " ")
    assert trace.typical_runs["pass"].unique().to_list() == ["region"]
    assert xsp.load(trace.save(tmp_path / "a.xsp")).spans.equals(trace.spans)


@pytest.mark.slow
@pytest.mark.usefixtures("two_processes")
@pytest.mark.parametrize(
    ("where", "said"),
    [
        (
            "",
            "the synchronous pass failed: the target raised ValueError: not",
        ),
        ("def work():\n    ", "the synchronous pass failed: the target raised ValueError"),
    ],
)
def test_one_that_fails_costs_only_what_it_would_have_told(
    write: Write, settings: Settings, where: str, said: str
) -> None:
    failing = "if 'CUDA_LAUNCH_BLOCKING' in os.environ: raise ValueError('not while blocking')\n"
    trace = isolate.measure_isolated(write(where + failing), settings, synchronous=True)
    trace.check()
    (warning,) = [p for p in trace.warnings if p.code == "synchronous-failed"]
    assert warning.message.startswith(said)
    assert synchronous_ns(trace) == {}
    assert "synchronous" not in passes(trace)
    assert trace.root.latency_ns is not None


@pytest.mark.slow
@pytest.mark.usefixtures("without_torch")
def test_an_interrupt_while_it_is_made_keeps_the_rest(tmp_path: Path, write: Write) -> None:
    hanging = "if 'CUDA_LAUNCH_BLOCKING' in os.environ:\n    hang()\n"
    code, _ = interrupted(tmp_path, write(HANGING + hanging), "model", "--synchronous")
    assert code == 130
    trace = xsp.load(tmp_path / "kept.xsp")
    assert trace.warnings[0].code == INTERRUPTED.code
    assert "synchronous" not in passes(trace)
    for name in ("processes", "helper"):
        wait_until(partial(has_ended, int((tmp_path / name).read_text().split()[-1])))


# A level that sees kernels, but not what launched them.
DOUBT = """
from xsp.level import Kind, Level
from xsp.provider.contract import Records
from xsp.provider.row import no_rows, span_rows

class Doubt:
    name, level, kinds = "doubt", Level.KERNEL, frozenset({Kind.KERNEL})
    armed = None

    def unavailable(self):
        return None

    def start(self, clock, request):
        Doubt.armed, Doubt.seen = clock, []

    def stop(self):
        Doubt.armed = None
        return Records(list(Doubt.seen))

    def spans(self, records):
        if not records.data:
            return no_rows()
        start, end = zip(*records.data)
        names = {"kind": "kernel", "name": "gemm", "start_ns": start, "end_ns": end}
        return span_rows({**names, "device": 0, "stream": 7})

def launch():
    if Doubt.armed is not None:
        begin = Doubt.armed.now()
        while (end := Doubt.armed.now()) < begin + 2_000:
            pass
        Doubt.seen.append((begin, end))
"""

LAUNCHING = """
import doubt, xsp
def work():
    for name in ("first", "second"):
        with xsp.span(name):
            doubt.launch()
"""


@pytest.fixture
def doubt(without_torch: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a level that leaves doubt where children look for one."""
    (tmp_path / "hidden" / "doubt.py").write_text(DOUBT)
    about = tmp_path / "hidden" / "doubt-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: doubt\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[xsp.levels]\ndoubt = doubt:Doubt\n")
    monkeypatch.setattr(isolate, "_PROCESSES", 2)


@pytest.mark.slow
@pytest.mark.usefixtures("doubt")
def test_it_settles_what_is_in_doubt(tmp_path: Path, write: Write) -> None:
    settings = settings_of(("model", "kernel"), runs=3)
    plain = isolate.measure_isolated(write(LAUNCHING), settings)
    (message,) = [p.message for p in plain.warnings if p.code == "no-launch"]
    assert message.endswith("`xsp profile --synchronous` may show which.")
    assert processes(tmp_path) == 2
    (tmp_path / "processes").unlink()
    trace = isolate.measure_isolated(write(LAUNCHING), settings, synchronous=True)
    trace.check()
    assert processes(tmp_path) == 3
    kernels = [path for path in trace.spans["path"] if "gemm" in path]
    assert kernels == ["work/first/gemm", "work/second/gemm"]
    codes = [warning.code for warning in trace.warnings]
    assert "settled" in codes
    assert "no-launch" not in codes
    assert "kernels may have belonged to" in trace.warnings[codes.index("settled")].message
    found = synchronous_ns(trace)
    assert {path for path, ns in found.items() if ns is None} == set(kernels)
    assert set(found) - set(kernels) == {"work", "work/first", "work/second"}
    assert "with each kernel waited for: " in " ".join(str(trace).split())


@pytest.mark.slow
@pytest.mark.usefixtures("doubt")
def test_what_it_does_not_settle_stays_a_warning(write: Write) -> None:
    more = "    if 'CUDA_LAUNCH_BLOCKING' in os.environ:\n        doubt.launch()\n"
    settings = settings_of(("model", "kernel"), runs=3)
    trace = isolate.measure_isolated(write(LAUNCHING + more), settings, synchronous=True)
    assert {path for path in trace.spans["path"] if "gemm" in path} == {"work/gemm", "work/gemm#2"}
    messages = {warning.code: warning.message for warning in trace.warnings}
    assert "settled" not in messages
    assert messages["no-launch"].endswith("The synchronous pass does not show which.")
    assert synchronous_ns(trace)["work/first"] is not None


MODEL = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval()
x = torch.ones(2, 8)
def work():
    with torch.no_grad():
        return model(x)
"""


@pytest.mark.slow
def test_a_models_spans_have_their_synchronous_latency(write: Write) -> None:
    pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
    trace = isolate.measure_isolated(
        write(MODEL), settings_of(2, runs=5, budget=10.0), synchronous=True
    )
    trace.check()
    spans = trace.spans.unnest("attributes")
    assert {"region", "layer", "op"} <= set(spans["kind"])
    assert spans["synchronous_ns"].null_count() == 0
    # One or another of some µs may be 0 on a busy machine.
    assert (spans["synchronous_ns"] >= 0).all()
    assert (spans["synchronous_ns"] > 0).sum() > len(spans) / 2
    assert not any(warning.code == "synchronous-failed" for warning in trace.warnings)
