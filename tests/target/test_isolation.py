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
from pathlib import Path
from typing import Any

import psutil
import pytest

import xsp
from xsp.errors import MeasurementError, TargetFailedError, UnknownTargetError
from xsp.measurement.callable import rung_names
from xsp.session.settings import Settings, settings_of
from xsp.target import division, rotation, worker
from xsp.target import isolation as isolate
from xsp.target.spec import Spec
from xsp.testing import FakeClock, FakeProvider, only_providers

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
    return settings_of("model", runs=3, budget=2.0)


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
    monkeypatch.setenv("PYTHONPATH", str(hidden))


@pytest.fixture
def two_rungs(without_torch: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(division, "rung_names", lambda settings: ["pipeline", "bare"])
    monkeypatch.setattr(division, "_FEWEST_PROCESSES", 2)


def processes(tmp_path: Path) -> int:
    return len((tmp_path / "processes").read_text().split())


@pytest.mark.parametrize("error", [MeasurementError("no provider"), KeyboardInterrupt()])
def test_the_process_that_is_started_at_once_ends_with_what_ends_the_division(
    write: Write, settings: Settings, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    running: list[set[psutil.Process]] = []

    def fail(*_: object, **__: object) -> None:
        running.append(set(psutil.Process().children()) - before)
        raise error

    monkeypatch.setattr(isolate, "divide", fail)
    before = set(psutil.Process().children())
    with pytest.raises(type(error)):
        isolate.measure_isolated(write(""), settings)
    ((process,),) = running
    assert not process.is_running()


@pytest.mark.slow
def test_every_rung_is_visited_in_one_of_three_processes(tmp_path: Path, write: Write) -> None:
    told: list[float] = []
    trace = isolate.measure_isolated(write(""), settings_of(2, runs=3, budget=2.0), told.append)
    trace.check()
    assert trace.name == "work"
    assert trace.root.latency_ns is not None
    assert not any(problem.code == "rung-failed" for problem in trace.problems)
    rungs = rung_names(settings_of(2))
    assert processes(tmp_path) == 3
    kept = trace.typical_runs["rung"].unique(maintain_order=True).to_list()
    assert kept == [rung for rung in rungs if rung != "detail"]
    assert told == sorted(told)
    assert told[-1] == pytest.approx(1.0)


@pytest.mark.slow
@pytest.mark.usefixtures("without_torch")
def test_processes_are_compared_even_where_the_ladder_has_one_rung(
    tmp_path: Path, write: Write
) -> None:
    trace = isolate.measure_isolated(write(""), settings_of(1, runs=5))
    assert processes(tmp_path) == 3
    assert trace.metadata["intervals"] == "across 3 processes"
    assert [rung["rung"] for rung in trace.metadata["rungs"]] == ["bare", "pipeline"]
    assert "across 3 processes" in str(trace).splitlines()[0]


@pytest.mark.slow
@pytest.mark.usefixtures("two_rungs")
def test_the_trace_hangs_in_the_span_that_the_parent_was_started_in(
    write: Write, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller, other = (f"00-{number:032x}-{number:016x}-01" for number in (1, 2))
    monkeypatch.setenv("TRACEPARENT", caller)
    monkeypatch.setenv("TRACESTATE", "vendor=1")
    before = time.time_ns()
    trace = isolate.measure_isolated(write(f"os.environ['TRACEPARENT'] = {other!r}\n"), settings)
    assert trace.metadata["traceparent"] == caller
    assert trace.metadata["tracestate"] == "vendor=1"
    assert abs(trace.metadata["began_unix_ns"] - before) < 1_000_000_000  # not a child's start
    assert trace.typical_runs["name"].to_list() == ["work"]


@pytest.mark.usefixtures("two_rungs")
def test_a_process_that_is_killed_costs_its_rung_only(
    tmp_path: Path, write: Write, settings: Settings
) -> None:
    spec = write("if number == 2:\n    os.kill(os.getpid(), signal.SIGKILL)\n")
    trace = isolate.measure_isolated(spec, settings)
    trace.check()
    first = trace.problems[0]
    assert first.code == "rung-failed"
    assert "the bare rung is missing" in first.message
    assert "SIGKILL (often: out of memory)" in first.message
    assert trace.root.latency_ns is not None


@pytest.mark.slow
@pytest.mark.usefixtures("without_torch")
def test_a_further_process_that_is_killed_costs_no_rung(tmp_path: Path, write: Write) -> None:
    spec = write("if number == 2:\n    os.kill(os.getpid(), signal.SIGKILL)\n")
    trace = isolate.measure_isolated(spec, settings_of(1, runs=5))
    messages = {problem.code: problem.message for problem in trace.problems}
    assert "one of 3 processes of the pipeline rung failed" in messages["process-failed"]
    assert trace.metadata["intervals"] == "across 2 processes"


@pytest.mark.usefixtures("without_torch")
def test_what_ends_every_process_is_said_with_its_last_words(
    write: Write, settings: Settings
) -> None:
    spec = write("def work():\n    print('out of data', file=sys.stderr)\n    sys.exit(7)\n")
    with pytest.raises(MeasurementError, match=r"\(pipeline\).*exit code 7: out of data"):
        isolate.measure_isolated(spec, settings)


@pytest.mark.usefixtures("without_torch")
def test_an_exception_on_every_rung_is_the_targets(write: Write, settings: Settings) -> None:
    spec = write("def work():\n    raise ValueError('no such batch')\n")
    with pytest.raises(TargetFailedError, match="ValueError: no such batch") as caught:
        isolate.measure_isolated(spec, settings)
    assert caught.value.traceback.startswith("Traceback (most recent call last):\n  File ")
    assert "job.py" in caught.value.traceback
    assert f"xsp{os.sep}" not in caught.value.traceback


@pytest.mark.usefixtures("two_rungs")
def test_what_fails_before_the_measurement_is_not_tried_again(tmp_path: Path, write: Write) -> None:
    spec = write("1 / 0\n")
    with pytest.raises(TargetFailedError, match="ZeroDivisionError") as caught:
        isolate.measure_isolated(spec, settings_of(2))
    assert processes(tmp_path) == 1
    assert caught.value.traceback.count("File ") == 1


@pytest.mark.usefixtures("two_rungs")
def test_an_unknown_target_is_not_tried_again(tmp_path: Path, write: Write) -> None:
    spec = write("")
    with pytest.raises(UnknownTargetError, match="did you mean work"):
        isolate.measure_isolated(Spec(spec.target.replace(":work", ":wrok")), settings_of(2))
    assert processes(tmp_path) == 1


@pytest.mark.usefixtures("without_torch")
def test_a_process_that_hangs_is_ended(
    write: Write, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "SILENCE_S", 0.5)
    with pytest.raises(MeasurementError, match="said nothing for 0 s and was ended"):
        isolate.measure_isolated(write("time.sleep(600)\n"), settings)


@pytest.mark.usefixtures("without_torch")
def test_what_a_target_prints_stays_away(
    write: Write, settings: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    isolate.measure_isolated(write("print('loud')\nprint('loud', file=sys.stderr)\n"), settings)
    assert capfd.readouterr() == ("", "")


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
    slow = "import atexit\natexit.register(lambda: (time.sleep(2), print('ended')))\n"
    numbers = tmp_path / "processes"
    with ExitStack() as ending:
        isolate.measure_isolated(write(slow), settings, ending=ending).check()
        assert not any(has_ended(int(number)) for number in numbers.read_text().split())
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


def interrupted(tmp_path: Path, spec: Spec, levels: str, *options: str) -> tuple[int, str]:
    """Start `xsp profile`, interrupt it once the file `ready` is there, and wait for it."""
    command = [sys.executable, "-m", "xsp", "profile", spec.target, "--levels", levels]
    command += ["--runs", "3", "-o", str(tmp_path / "kept.xsp"), *options]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as one:
        wait_until((tmp_path / "ready").exists)
        one.send_signal(signal.SIGINT)
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
def test_an_interrupt_ends_the_process_and_keeps_what_is_complete(
    tmp_path: Path, write: Write
) -> None:
    # The second process hangs in its fifth evaluation, when the first has made some.
    code, said = interrupted(tmp_path, write(HANGING + HANGING_LATER), "2")
    assert code == 130
    trace = xsp.load(tmp_path / "kept.xsp")
    assert isolate.INTERRUPTED in {problem.code for problem in trace.problems}
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
    assert said.strip() == "xsp: interrupted"
    assert not (tmp_path / "kept.xsp").exists()


def test_an_interrupt_while_measuring_here_keeps_what_there_is(write: Write) -> None:
    job = "calls = []\ndef work():\n    calls.append(0)\n    if len(calls) == 9:\n        "
    spec = write(job + "os.kill(os.getpid(), signal.SIGINT)\n")
    before = signal.getsignal(signal.SIGINT)
    with only_providers(FakeProvider(FakeClock())):
        trace = isolate.measure_here(spec, settings_of("model", runs=500, budget=60.0))
    assert trace.problems[0].code == isolate.INTERRUPTED
    assert signal.getsignal(signal.SIGINT) is before
    early = write(job.replace("9", "1") + "os.kill(os.getpid(), signal.SIGINT)\n")
    with only_providers(FakeProvider(FakeClock())):  # the first evaluation has a tree already
        trace = isolate.measure_here(early, settings_of("model", runs=5))
    assert trace.root.attributes["inexact"] == ["cold", "few"]


def test_measuring_here_uses_this_process(tmp_path: Path, write: Write) -> None:
    with only_providers(FakeProvider(FakeClock())):
        trace = isolate.measure_here(write(""), settings_of("model", runs=3, budget=1.0))
    trace.check()
    assert (tmp_path / "processes").read_text().split() == [str(os.getpid())]


def test_measuring_here_tells_the_targets_exception_apart(write: Write) -> None:
    with (
        only_providers(FakeProvider(FakeClock())),
        pytest.raises(TargetFailedError, match="ZeroDivisionError"),
    ):
        isolate.measure_here(write("1 / 0\n"), settings_of("model"))


# The serialised measurement.

NOTING = """
variables = ("CUDA_LAUNCH_BLOCKING", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
with counter.with_name("variables").open("a") as file:
    file.write(" ".join(os.environ.get(name, "-") for name in variables) + "\\n")
"""


def serialised_ns(trace: xsp.Trace) -> dict[str, float | None]:
    """Return the field of each span, by path; empty where no span has it."""
    spans = trace.spans.unnest("attributes")
    if "serialised_ns" not in spans.columns:
        return {}
    return dict(spans.select("path", "serialised_ns").iter_rows())


def rungs(trace: xsp.Trace) -> dict[str, dict[str, Any]]:
    return {rung["rung"]: dict(rung) for rung in trace.metadata["rungs"]}


@pytest.mark.slow
@pytest.mark.usefixtures("two_rungs")
def test_a_serialised_process_has_the_variables_and_climbs_the_whole_ladder(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in worker.SERIALISED:
        monkeypatch.delenv(name, raising=False)
    told: list[float] = []
    spec = write(NOTING)
    trace = isolate.measure_isolated(
        spec, settings_of("model", runs=3, budget=3.0), told.append, serialised=True
    )
    trace.check()
    assert (tmp_path / "variables").read_text().splitlines() == ["- - - -"] * 2 + ["1 1 1 1"]
    assert told == sorted(told)
    assert told[-1] == pytest.approx(1.0)
    assert serialised_ns(trace) == {"work": rungs(trace)["serialised"]["latency_ns"]}
    assert rungs(trace)["serialised"]["runs"] >= 3
    assert trace.root.latency_ns != rungs(trace)["serialised"]["latency_ns"]
    assert "with one thread: " in str(trace).replace("\n  ", " ")
    assert trace.typical_runs["rung"].unique().to_list() == ["pipeline"]
    assert xsp.load(trace.save(tmp_path / "a.xsp")).spans.equals(trace.spans)


@pytest.mark.slow
@pytest.mark.usefixtures("two_rungs")
def test_it_is_not_made_unasked_where_nothing_is_in_doubt(
    tmp_path: Path, write: Write, settings: Settings
) -> None:
    trace = isolate.measure_isolated(write(""), settings)
    assert processes(tmp_path) == 2
    assert "serialised" not in rungs(trace)
    assert serialised_ns(trace) == {}
    assert "with one thread" not in str(trace)


@pytest.mark.slow
@pytest.mark.usefixtures("two_rungs")
def test_it_has_the_part_of_two_rungs_of_the_budget(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[tuple[str, ...] | None, float]] = []

    class Noting(worker.Worker):
        def take(self, job: worker.Job, name: str = "") -> None:
            asked.append((job.rungs, round(job.settings.budget_s, 6)))
            super().take(job, name)

    monkeypatch.setattr(rotation, "Worker", Noting)
    monkeypatch.setattr(division, "rung_names", lambda settings: ["pipeline", "bare", "detail"])
    isolate.measure_isolated(write(""), settings_of("model", runs=3, budget=8.25), serialised=True)
    assert asked == [(("pipeline",), 2.0), (("bare", "detail"), 2.25), (None, 4.0)]


@pytest.mark.slow
@pytest.mark.usefixtures("two_rungs")
@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("", "the serialised run is missing: the target raised ValueError: not while blocking"),
        ("def work():\n    ", "the serialised run is missing: the target raised ValueError"),
    ],
)
def test_one_that_fails_costs_only_what_it_would_have_told(
    write: Write, settings: Settings, where: str, said: str
) -> None:
    failing = "if 'CUDA_LAUNCH_BLOCKING' in os.environ: raise ValueError('not while blocking')\n"
    trace = isolate.measure_isolated(write(where + failing), settings, serialised=True)
    trace.check()
    (problem,) = [p for p in trace.problems if p.code == "serialised-failed"]
    assert problem.message.startswith(said)
    assert serialised_ns(trace) == {}
    assert "serialised" not in rungs(trace)
    assert trace.root.latency_ns is not None


@pytest.mark.slow
@pytest.mark.usefixtures("without_torch")
def test_an_interrupt_while_it_is_made_keeps_the_rest(tmp_path: Path, write: Write) -> None:
    hanging = "if 'CUDA_LAUNCH_BLOCKING' in os.environ:\n    hang()\n"
    code, _ = interrupted(tmp_path, write(HANGING + hanging), "model", "--serialised")
    assert code == 130
    trace = xsp.load(tmp_path / "kept.xsp")
    assert trace.problems[0].code == isolate.INTERRUPTED
    assert "serialised" not in rungs(trace)
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
    monkeypatch.setattr(division, "rung_names", lambda settings: ["pipeline", "kernel"])
    monkeypatch.setattr(division, "_FEWEST_PROCESSES", 2)


@pytest.mark.slow
@pytest.mark.usefixtures("doubt")
def test_it_is_made_unasked_where_there_is_doubt_and_settles_it(
    tmp_path: Path, write: Write
) -> None:
    settings = settings_of(("model", "kernel"), runs=3, budget=2.0)
    trace = isolate.measure_isolated(write(LAUNCHING), settings)
    trace.check()
    assert processes(tmp_path) == 3
    kernels = [path for path in trace.spans["path"] if "gemm" in path]
    assert kernels == ["work/first/gemm", "work/second/gemm"]
    codes = [problem.code for problem in trace.problems]
    assert "settled" in codes
    assert "no-launch" not in codes
    assert "kernels may have belonged to" in trace.problems[codes.index("settled")].message
    found = serialised_ns(trace)
    assert {path for path, ns in found.items() if ns is None} == set(kernels)
    assert set(found) - set(kernels) == {"work", "work/first", "work/second"}
    assert "with each kernel waited for: " in " ".join(str(trace).split())


@pytest.mark.slow
@pytest.mark.usefixtures("doubt")
def test_what_it_does_not_settle_stays_a_problem(write: Write) -> None:
    more = "    if 'CUDA_LAUNCH_BLOCKING' in os.environ:\n        doubt.launch()\n"
    settings = settings_of(("model", "kernel"), runs=3, budget=2.0)
    trace = isolate.measure_isolated(write(LAUNCHING + more), settings)
    assert {path for path in trace.spans["path"] if "gemm" in path} == {"work/gemm", "work/gemm#2"}
    messages = {problem.code: problem.message for problem in trace.problems}
    assert "settled" not in messages
    assert messages["no-launch"].endswith("the serialised run does not show which")
    assert serialised_ns(trace)["work/first"] is not None


MODEL = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval()
x = torch.ones(2, 8)
def work():
    with torch.no_grad():
        return model(x)
"""


@pytest.mark.slow
def test_a_models_spans_have_their_serialised_latency(write: Write) -> None:
    pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
    trace = isolate.measure_isolated(
        write(MODEL), settings_of(2, runs=5, budget=10.0), serialised=True
    )
    trace.check()
    spans = trace.spans.unnest("attributes")
    assert {"pipeline", "layer", "op"} <= set(spans["kind"])
    assert spans["serialised_ns"].null_count() == 0
    # One or another of some µs may be 0 on a busy machine.
    assert (spans["serialised_ns"] >= 0).all()
    assert (spans["serialised_ns"] > 0).sum() > len(spans) / 2
    assert not any(problem.code == "serialised-failed" for problem in trace.problems)
