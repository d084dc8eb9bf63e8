"""Profiles another process of this user for a while, without a change of its code if it can.

A process that called `profile_on_signal` announces that in a file, so that no signal is sent to
one that would die of it. It then finds what is asked of it in a second file. From Python 3.14 on
CPython runs a script in another process (PEP 768), which needs no announcement.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from xsp.errors import MeasurementError, guarded
from xsp.level import LevelSet
from xsp.machine import replacing, state_folder
from xsp.measuring.program.block import profile

_BEGINNING_S = 30.0  # at most, until the process begins
_MAKING_S = 120.0  # at most, to make a trace after the profile
BEGUN, SAVED, _FAILED = "begun", "saved", "failed"  # files that the process leaves
_NOT_BEGUN = (
    "Process {pid} did not begin within {seconds:g} s. Its main thread runs no Python code, or "
    "another handler of the signal took the place of xsp's. Try again later."
)
_NOT_SAVED = "Process {pid} gave no trace within {seconds:g} s. Look at its standard error."
_POLL_S = 0.05
_PYTHON = re.compile(r"(?:lib)?python3\.(\d+)")


def attach(
    pid: int,
    output: str | os.PathLike[str],
    *,
    seconds: float = 10.0,
    levels: LevelSet = 2,
    begun: Callable[[], None] = lambda: None,
) -> Path:
    """Have a running Python process profile itself for some seconds, and save the trace.

    Args:
        pid: Number of the process.
        output: File for the trace; the process must be able to write it.
        seconds: Length of the profile, in seconds.
        levels: What to record, as for `xsp.profile`.
        begun: Called when the process has begun to profile itself.

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
    with (
        tempfile.TemporaryDirectory(prefix="xsp-attach-") as folder,
        _only_one(pid) as asking,
    ):
        request = {
            "seconds": seconds,
            "levels": levels if isinstance(levels, str) else _numbers(levels),
            "output": str(Path(output).resolve()),
            "folder": folder,
        }
        announced = _announced(pid)
        if announced is not None:
            asking.write_text(json.dumps(request), encoding="utf-8")
            _send(pid, int(announced["signal"]))
        else:
            _inject(pid, request, Path(folder))
        _await(pid, Path(folder, BEGUN), _BEGINNING_S, _NOT_BEGUN)
        begun()
        _await(pid, Path(folder, SAVED), seconds + _MAKING_S, _NOT_SAVED)
    return Path(output).resolve()


def _numbers(levels: LevelSet) -> int | list[int | str]:
    """Write levels as JSON can hold them."""
    if isinstance(levels, Iterable):
        return [each if isinstance(each, str) else int(str(int(each))) for each in levels]
    return int(levels)


@contextmanager
def _only_one(pid: int) -> Iterator[Path]:
    """Keep other calls of `attach` away from a process; yield the file for the request.

    Raises:
        MeasurementError: Another one is attached.
    """
    file, lock = _file(pid, "request"), _file(pid, "lock")
    lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with FileLock(lock, timeout=0):  # the system frees it if this process dies
            yield file
    except Timeout:
        raise MeasurementError(
            f"Another xsp is attached to process {pid}. Wait until it has ended."
        ) from None
    finally:
        file.unlink(missing_ok=True)


def _send(pid: int, signal: int) -> None:
    """Signal a process, unless it would die of the signal, or ignores it.

    Raises:
        MeasurementError: It does not handle the signal, or may not be signaled.
    """
    status = Path("/proc", str(pid), "status").read_text("utf-8", "replace")
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    if caught is None or not int(caught[1], 16) >> signal - 1 & 1:
        raise MeasurementError(
            f"Process {pid} no longer handles signal {signal}, by which xsp would reach it. Call "
            "xsp.profile_on_signal() after whatever resets its handlers."
        )
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
            f"Process {pid} runs Python 3.{theirs[1]}. From outside, xsp gets only into Python "
            "3.14 or later, from the same version. Put xsp.profile_on_signal() at the program's "
            "start; then xsp attach works."
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


def _await(pid: int, file: Path, patience_s: float, late: str) -> None:
    """Wait until the other process has left a file: empty, or the reason of a failure.

    Raises:
        MeasurementError: It failed, ended, or took too long.
    """
    until = time.monotonic() + patience_s
    failed = file.with_name(_FAILED)
    while not file.exists():
        if failed.exists():
            raise MeasurementError(f"Process {pid} was not profiled: {failed.read_text('utf-8')}")
        if not Path("/proc", str(pid)).exists() or "zombie" in _state(pid):
            if file.exists():  # left at the last moment
                return
            raise MeasurementError(f"Process {pid} was killed before its trace was saved.")
        if time.monotonic() > until:
            raise MeasurementError(late.format(pid=pid, seconds=patience_s))
        time.sleep(_POLL_S)


def _state(pid: int) -> str:
    with suppress(OSError):
        return Path("/proc", str(pid), "status").read_text("utf-8", "replace").partition("Tgid")[0]
    return ""


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
        for old in file.parent.iterdir():
            if not Path("/proc", old.stem).exists():
                old.unlink(missing_ok=True)
        with replacing(file) as written:
            told = {"signal": signal, "began": _began(os.getpid())}
            written.write(json.dumps(told).encode())


def asked() -> dict[str, Any]:
    """Read the request of `attach` to this process; empty if a person sent the signal."""
    file = _file(os.getpid(), "request")
    with suppress(OSError, ValueError, KeyError):
        request: dict[str, Any] = json.loads(file.read_text("utf-8"))
        new = not Path(request["folder"], BEGUN).exists()
        if file.stat().st_uid == os.getuid() and new:
            return request
    return {}


def serve(request: Mapping[str, Any]) -> None:
    """Begin a profile in this process that ends by itself, and save its trace as asked.

    Args:
        request: `seconds`, `levels`, `output` and `folder`.
    """

    def begin() -> profile:
        name = Path(sys.argv[0]).name or "program"
        made = profile(request["levels"], repeat=False, progress=False, name=name)
        return made.__enter__()

    started = guarded(begin, lambda error: tell(request, error))
    if started is None:
        return
    tell(request, BEGUN)

    def end() -> None:
        atexit.unregister(end)

        def save() -> None:
            started.__exit__(None, None, None)
            started.trace.save(request["output"])
            tell(request, SAVED)

        guarded(save, lambda error: tell(request, error))

    atexit.register(end)  # a program that ends meanwhile keeps its trace
    timer = threading.Timer(request["seconds"], end)
    timer.daemon = True
    timer.start()


def tell(request: Mapping[str, Any], what: str | Exception) -> None:
    """Leave `attach` a file: how far this process is, or why it failed."""
    if not request:
        return
    name, text = (what, "") if isinstance(what, str) else (_FAILED, str(what))
    with suppress(OSError):  # nobody waits any more
        Path(request["folder"], name).write_text(text, encoding="utf-8")


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
