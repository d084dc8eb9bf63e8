"""Measures every rung in a process of its own: what a profiler leaves behind dies with it.

The parent starts one child after the other (`python -m xsp.isolate JOB FOLDER`);
each resolves the target itself, measures one rung and saves what it collected.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from xsp.collected import Collected, build
from xsp.errors import MeasurementError, TraceFormatError, XspError
from xsp.measurement import collect, rung_names
from xsp.plan import Settings
from xsp.progress import Progress, progress_bar
from xsp.script import without_own_frames
from xsp.target import Spec, Subject, TargetFailedError, UnknownTargetError, resolve
from xsp.trace import Problem, Trace

# A child that has told nothing for so long hangs: no evaluation takes ten minutes.
SILENCE_S = 600.0

INTERRUPTED = "interrupted"

_JOB, _FAILURE, _OUTPUT, _RUNS = "job.json", "failure.json", "output.txt", "runs"
_LAST_LINES = 8
_DETAIL_WEIGHT = 0.25  # such a rung is visited once: its child needs little of the budget


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a child has nothing to give.

    Attributes:
        cause: `usage`: there is no such target; `measurement`: it cannot be
            measured here; `target`: it raised; `died`: the process ended.
        message: What happened.
        traceback: The target's traceback, if it raised.
        early: Whether it happened before the measurement, and so would again.
    """

    cause: Literal["usage", "measurement", "target", "died"]
    message: str
    traceback: str = ""
    early: bool = False

    def error(self) -> Exception:
        """Return it as the exception that the parent raises."""
        if self.cause == "usage":
            return UnknownTargetError(self.message)
        if self.cause == "target":
            return TargetFailedError(self.message, self.traceback)
        return MeasurementError(self.message)


def measure(spec: Spec, settings: Settings, progress: bool | Progress | None = None) -> Trace:
    """Measure a target rung by rung, each in a fresh process, and return its trace.

    A child that fails costs its rung, which becomes a problem of the trace. Ctrl-C
    ends the measurement; what was complete by then is kept, and the trace has the
    problem `interrupted`.

    Args:
        spec: What to measure.
        settings: How to measure; the budget is divided over the rungs.
        progress: As for `xsp.measure`.

    Raises:
        UnknownTargetError: There is no such target.
        TargetFailedError: The target raised on every rung, or while it was made.
        MeasurementError: No rung could be measured.
        KeyboardInterrupt: Interrupted before the first rung was complete.
    """
    rungs = rung_names(settings)
    done: list[Collected] = []
    failures: dict[str, Failure] = {}
    interrupted = False
    with progress_bar(progress, f"measuring {spec.name}") as tell, _folder() as folder:
        for rung, share, told in _shares(rungs, settings, tell):
            try:
                outcome = _measure_rung(_Job(spec, share, rung), folder / rung, told)
            except KeyboardInterrupt:
                interrupted = True
                break
            if isinstance(outcome, Collected):
                done.append(outcome)
                continue
            if outcome.early:
                raise outcome.error()
            failures[rung] = outcome
    if not done:
        raise KeyboardInterrupt if interrupted else _total_failure(failures)
    return _with_problems(build(done, settings), _problems(failures, interrupted=interrupted))


def measure_here(spec: Spec, settings: Settings, progress: bool | Progress | None = None) -> Trace:
    """Measure a target in this process, on every rung, and return its trace.

    Args:
        spec: What to measure.
        settings: How to measure.
        progress: As for `xsp.measure`.

    Raises:
        UnknownTargetError: There is no such target.
        TargetFailedError: The target raised.
        MeasurementError: It cannot be measured here.
    """
    outcome = _attempt(lambda: _collect(resolve(spec), settings, None, progress), early=True)
    if isinstance(outcome, Failure):
        raise outcome.error()
    return build([outcome], settings)


@dataclass(frozen=True, slots=True)
class _Job:
    spec: Spec
    settings: Settings
    rung: str

    def save(self, path: Path, progress_fd: int) -> None:
        job = {"spec": self.spec.to_json(), "settings": self.settings.to_json()}
        path.write_text(json.dumps(job | {"rung": self.rung, "fd": progress_fd}), encoding="utf-8")


def _shares(
    rungs: Sequence[str], settings: Settings, tell: Progress
) -> Iterator[tuple[str, Settings, Progress]]:
    """Yield every rung with its part of the budget and of the progress bar."""
    weights = [_DETAIL_WEIGHT if rung == "detail" else 1.0 for rung in rungs]
    whole, begin = sum(weights), 0.0
    for rung, weight in zip(rungs, weights, strict=True):
        part = weight / whole
        yield rung, replace(settings, budget_s=settings.budget_s * part), _part(tell, begin, part)
        begin += part
        tell(min(1.0, begin))


def _part(tell: Progress, begin: float, part: float) -> Progress:
    return lambda fraction: tell(begin + part * fraction)


def _measure_rung(job: _Job, folder: Path, tell: Progress) -> Collected | Failure:
    folder.mkdir()
    code = _run_child(job, folder, tell)
    if (folder / _FAILURE).exists():
        return Failure(**json.loads((folder / _FAILURE).read_text(encoding="utf-8")))
    if code is None:
        return Failure("died", f"its process said nothing for {SILENCE_S:.0f} s and was ended")
    if code != 0:
        return Failure("died", f"its process {_ended(code)}{_last_lines(folder / _OUTPUT)}")
    try:
        return Collected.load(folder / _RUNS)
    except TraceFormatError as error:
        return Failure("died", f"its process left no result: {error}")


def _run_child(job: _Job, folder: Path, tell: Progress) -> int | None:
    """Return the child's exit code, or None if it was ended because it hung."""
    listen, speak = os.pipe()
    try:
        job.save(folder / _JOB, speak)
        child = _start(folder, speak)
    finally:
        os.close(speak)
    try:
        return _follow(child, listen, tell)
    finally:
        os.close(listen)
        _end(child)


def _start(folder: Path, speak: int) -> subprocess.Popen[bytes]:
    # -P: a torch.py that happens to lie in the working directory must not be imported.
    safe = ["-P"] if sys.version_info >= (3, 11) else []
    command = [sys.executable, *safe, "-m", "xsp.isolate", str(folder / _JOB), str(folder)]
    with (folder / _OUTPUT).open("wb") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=(speak,),
            start_new_session=True,  # Ctrl-C reaches the parent, which ends the child
        )


def _follow(child: subprocess.Popen[bytes], listen: int, tell: Progress) -> int | None:
    heard = time.monotonic()
    while (code := child.poll()) is None:
        if select.select([listen], [], [], 0.25)[0]:
            said = os.read(listen, 4096)
            if not said:  # closed: it is about to end
                with suppress(subprocess.TimeoutExpired):
                    child.wait(0.25)
                continue
            heard = time.monotonic()
            with suppress(ValueError):
                tell(float(said.split()[-1]))
        elif time.monotonic() - heard > SILENCE_S:
            return None
    return code


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a child, if it still runs, with every process that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(2.0)
            return


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="xsp-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    why = " (often: out of memory)" if name == "SIGKILL" else ""
    return f"was ended by {name}{why}"


def _last_lines(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return ": " + "\n".join(lines[-_LAST_LINES:]) if lines else ""


def _total_failure(failures: dict[str, Failure]) -> Exception:
    if not failures:
        return MeasurementError("there is no rung that could be measured here: see `xsp doctor`")
    rung, failure = next(iter(failures.items()))
    if failure.cause == "target":
        return failure.error()
    return MeasurementError(f"no rung could be measured; on the first ({rung}): {failure.message}")


def _problems(failures: dict[str, Failure], *, interrupted: bool) -> list[Problem]:
    problems = [
        Problem("rung-failed", f"the {rung} rung is missing: {failure.message}")
        for rung, failure in failures.items()
    ]
    if interrupted:
        sentence = "the measurement was interrupted; the rungs after that are missing"
        problems.append(Problem(INTERRUPTED, sentence))
    return problems


def _with_problems(trace: Trace, problems: Sequence[Problem]) -> Trace:
    if not problems:
        return trace
    said = [*(asdict(problem) for problem in problems), *trace.metadata["problems"]]
    return Trace(trace.spans, {**trace.metadata, "problems": said})


def main(job_path: str, directory: str) -> int:
    """Measure one rung, as the child of `measure`.

    Args:
        job_path: The job that the parent wrote.
        directory: Where to leave the runs, or why there are none.

    Returns:
        The exit code: 0, or 1 if it could not be measured.
    """
    job = json.loads(Path(job_path).read_text(encoding="utf-8"))
    os.set_inheritable(job["fd"], False)
    folder = Path(directory)
    outcome = _attempt(lambda: resolve(Spec.from_json(job["spec"])), early=True)
    if isinstance(outcome, Subject):
        subject = outcome
        outcome = _attempt(lambda: _collected(subject, job), early=False)
    if isinstance(outcome, Failure):
        (folder / _FAILURE).write_text(json.dumps(asdict(outcome)), encoding="utf-8")
        return 1
    outcome.save(folder / _RUNS)
    return 0


def _collected(subject: Subject, job: dict[str, Any]) -> Collected:
    def tell(fraction: float) -> None:
        os.write(job["fd"], f"{fraction:.4f}\n".encode())

    return _collect(subject, Settings.from_json(job["settings"]), [job["rung"]], tell)


def _collect(
    subject: Subject,
    settings: Settings,
    rungs: Sequence[str] | None,
    progress: bool | Progress | None,
) -> Collected:
    with subject.mode():
        return collect(
            subject.function, subject.args, settings=settings, rungs=rungs, progress=progress
        )


def _attempt(work: Callable[[], Any], *, early: bool) -> Any:
    try:
        return work()
    except UnknownTargetError as error:
        return Failure("usage", str(error), early=True)
    except XspError as error:
        return Failure("measurement", str(error), early=early)
    except Exception as error:  # noqa: BLE001  the target may raise anything
        error.__traceback__ = without_own_frames(error.__traceback__)
        said = "".join(traceback.format_exception(error))
        message = "".join(traceback.format_exception_only(error)).strip()
        return Failure("target", f"the target raised {message}", said, early=early)


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
