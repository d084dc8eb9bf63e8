"""Profiles another process of this user for a while, without a change of its code if it can.

A process that called `profile_on_signal` announces that in a file, so that no signal is sent to
one that would die of it. It then finds what is asked of it in a second file. From Python 3.14 on
CPython runs a script in another process (PEP 768), which needs no announcement.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from xsp.errors import MeasurementError, guarded
from xsp.level import LevelSet
from xsp.machine import replacing, state_folder
from xsp.measuring.program.block import profile

_MAKING_S = 120.0  # at most, to make a trace after the profile
_POLL_S = 0.05
_PYTHON = re.compile(r"(?:lib)?python3\.(\d+)")


def attach(
    pid: int, output: str | os.PathLike[str], *, seconds: float = 10.0, levels: LevelSet = 2
) -> Path:
    """Have a running Python process profile itself for some seconds, and save the trace.

    Args:
        pid: Number of the process.
        output: File for the trace; the process must be able to write it.
        seconds: Length of the profile, in seconds.
        levels: What to record, as for `xsp.profile`.

    Returns:
        The file.

    Raises:
        ValueError: A level is unknown, or the number of seconds is not positive.
        MeasurementError: There is no such process, it cannot be reached, or it made no trace.
    """
    if seconds <= 0:
        raise ValueError(f"The number of seconds is not positive ({seconds:g}). Give more.")
    profile(levels)  # refuses wrong levels now, and not in the other process
    if not Path("/proc", str(pid)).exists():
        raise MeasurementError(f"There is no process {pid}. List Python's: pgrep -a python.")
    with tempfile.TemporaryDirectory(prefix="xsp-attach-") as folder:
        path, answer = Path(output).resolve(), Path(folder, "answer")
        request = {
            "seconds": seconds,
            "levels": levels if isinstance(levels, str) else int(str(levels)),
            "output": str(path),
            "answer": str(answer),
        }
        announced = _announced(pid)
        if announced is not None:
            asked = _file(pid, "request")
            asked.write_text(json.dumps(request), encoding="utf-8")
            _send(pid, announced["signal"])
        else:
            _inject(pid, request, Path(folder))
        return _awaited(pid, path, answer, seconds)


def _send(pid: int, signal: int) -> None:
    try:
        os.kill(pid, signal)
    except OSError as error:
        raise MeasurementError(
            f"Process {pid} cannot be signaled ({error.strerror}). Attach as its user."
        ) from None


def _inject(pid: int, request: Mapping[str, Any], folder: Path) -> None:
    """Run a script in the other process that begins the profile there.

    Raises:
        MeasurementError: This or the other Python is older than 3.14, or the system forbids it.
    """
    theirs = _version(pid)
    execute = getattr(sys, "remote_exec", None)
    if theirs is None:
        raise MeasurementError(f"Process {pid} is no Python program. Attach to one that is.")
    if execute is None or theirs != sys.version_info[:2]:
        raise MeasurementError(
            f"Process {pid} runs Python 3.{theirs[1]}, and this one 3.{sys.version_info[1]}; only "
            "two of one version from 3.14 on let xsp in from outside. Put "
            f"xsp.profile_on_signal() at the program's start; then xsp attach {pid} works."
        )
    script = folder / "begin.py"
    home = str(Path(__file__).parents[3])
    script.write_text(
        f"import sys\nsys.path.append({home!r})\n"
        "from xsp.measuring.program.remote import serve\n"
        f"serve({dict(request)!r})\n",
        encoding="utf-8",
    )
    try:
        execute(pid, str(script))
    except (OSError, RuntimeError) as error:
        raise MeasurementError(
            f"The system does not let xsp into process {pid} ({error}). Run as root, or allow it: "
            "sudo sysctl kernel.yama.ptrace_scope=0."
        ) from None


def _awaited(pid: int, path: Path, answer: Path, seconds: float) -> Path:
    until = time.monotonic() + seconds + _MAKING_S
    while time.monotonic() < until:
        if answer.exists() and (said := answer.read_text("utf-8")):
            if said == "saved":
                return path
            raise MeasurementError(f"Process {pid} was not profiled: {said}")
        if not Path("/proc", str(pid)).exists():
            raise MeasurementError(
                f"Process {pid} ended before its trace was saved. Ask for fewer --seconds."
            )
        time.sleep(_POLL_S)
    raise MeasurementError(
        f"Process {pid} gave no trace within {seconds + _MAKING_S:g} s. Its main thread has to run "
        "Python code: one that waits in C code profiles later."
    )


def _version(pid: int) -> tuple[int, int] | None:
    """Find a process's version of Python by the files that it has mapped; None: it is none."""
    with suppress(OSError):
        mapped = Path("/proc", str(pid), "maps").read_text("utf-8", "replace")
        names = (line.rpartition("/")[2] for line in mapped.splitlines() if "/" in line)
        for name in names:
            if found := _PYTHON.match(name):
                return 3, int(found[1])
    return None


# What a process that profiles itself on a signal announces, and what it is asked.


def announce(signal: int) -> None:
    """Announce that this process profiles itself on a signal."""
    with suppress(OSError):  # it works all the same, by `kill`
        file = _file(os.getpid(), "json")
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for old in file.parent.glob("*.json"):
            if not Path("/proc", old.stem).exists():
                old.unlink(missing_ok=True)
        with replacing(file) as written:
            told = {"signal": signal, "began": _began(os.getpid())}
            written.write(json.dumps(told).encode())


def asked() -> dict[str, Any]:
    """Take what `attach` asks of this process; empty if a person sent the signal."""
    file = _file(os.getpid(), "request")
    with suppress(OSError, ValueError):
        if file.stat().st_uid == os.getuid():
            request: dict[str, Any] = json.loads(file.read_text("utf-8"))
            file.unlink()
            return request
    return {}


def serve(request: Mapping[str, Any]) -> None:
    """Begin a profile in this process that ends by itself, and save its trace as asked.

    Args:
        request: `seconds`, `levels`, `output` and `answer`.
    """
    answer = Path(request["answer"])

    def begin() -> profile:
        name = Path(sys.argv[0]).name or "program"
        made = profile(request["levels"], repeat=False, progress=False, name=name)
        return made.__enter__()

    started = guarded(begin, lambda error: tell(answer, str(error)))
    if started is None:
        return

    def end() -> None:
        def save() -> None:
            started.__exit__(None, None, None)
            started.trace.save(request["output"])

        guarded(save, lambda error: tell(answer, str(error)))
        tell(answer, "saved")

    timer = threading.Timer(request["seconds"], end)
    timer.daemon = True
    timer.start()


def tell(answer: str | os.PathLike[str], text: str) -> None:
    """Answer `attach`, unless an answer is there already."""
    with suppress(OSError), Path(answer).open("x", encoding="utf-8") as file:
        file.write(text)


def _file(pid: int, ending: str) -> Path:
    return state_folder() / "attach" / f"{pid}.{ending}"


def _announced(pid: int) -> dict[str, Any] | None:
    """Read a process's announcement; None if there is none, or it is of an earlier process."""
    with suppress(OSError, ValueError):
        file = _file(pid, "json")
        told: dict[str, Any] = json.loads(file.read_text("utf-8"))
        if file.stat().st_uid == os.getuid() and told["began"] == _began(pid):
            return told
    return None


def _began(pid: int) -> str:
    """Read when a process began, in ticks since the machine did: numbers are used again."""
    stat = Path("/proc", str(pid), "stat").read_text("utf-8", "replace")
    return stat.rpartition(") ")[2].split()[19]
