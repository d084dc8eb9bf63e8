"""Cores: how many a measurement needs in, cores that no other measurement has meanwhile out.

What holds a core holds the lock of a file (flock(2)), in a folder that all programs of the user on
this machine share. The system lets go of the lock when its holder ends, however it ends.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from xsp.errors import MeasurementError

FOLDER = "XSP_CORES"  # variable that names another folder for the files

Core = tuple[int, ...]  # its logical CPUs, ascending

_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
_POLL_S = 0.1


def usable() -> tuple[Core, ...]:
    """Return the physical cores that this thread may run on."""
    siblings: dict[str, list[int]] = {}
    for cpu in _cpus():
        siblings.setdefault(_siblings(cpu), []).append(cpu)
    return tuple(tuple(cpus) for cpus in siblings.values())


@contextmanager
def held(
    number: int | None = None, waiting: Callable[[], None] | None = None
) -> Iterator[tuple[Core, ...]]:
    """Hold cores that nobody else holds, and keep this thread on them.

    Processes that this thread starts meanwhile stay on these cores as well. Where all cores are
    held by others this waits, behind whoever waits already, so that who needs many cores is not
    passed for ever by those that need few.

    Args:
        number: How many physical cores; None, or more than there are: all.
        waiting: Called once, if others have to be waited for.

    Raises:
        MeasurementError: The files that tell what is held cannot be written.
    """
    with ExitStack() as stack:
        cores = _taken(number, stack, _Once(waiting))
        with pinned(cores):
            yield cores


@contextmanager
def pinned(cores: tuple[Core, ...]) -> Iterator[None]:
    """Keep this thread, and processes that it starts, on these cores, held or not."""
    if not hasattr(os, "sched_setaffinity"):  # macOS
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu for core in cores for cpu in core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def chosen(number: int | None) -> tuple[Core, ...]:
    """Return the cores that are taken first where none is held."""
    # The system serves its devices on the first cores, rather than on the last.
    return tuple(reversed(usable()))[:number]


class _Once:
    """Calls a function the first time only."""

    def __init__(self, function: Callable[[], None] | None) -> None:
        self._function = function

    def __call__(self) -> None:
        if self._function is not None:
            function, self._function = self._function, None
            function()


def _taken(number: int | None, stack: ExitStack, waiting: _Once) -> tuple[Core, ...]:
    """Take cores, which are let go when the stack is unwound."""
    folder, cores = _folder(), chosen(None)
    wanted = min(number or len(cores), len(cores))
    taken: list[Core] = []
    with ExitStack() as turn:
        # Only who has the turn takes cores, so no two can wait for one another.
        while not _locked(folder / "turn", turn):
            _wait(waiting)
        while True:
            for core in cores:
                if core not in taken and _locked(folder / _file_name(core), stack):
                    taken.append(core)
                if len(taken) == wanted:
                    return tuple(taken)
            _wait(waiting)


def _wait(waiting: _Once) -> None:
    waiting()
    time.sleep(_POLL_S)


def _locked(path: Path, stack: ExitStack) -> bool:
    """Lock a file until the stack is unwound, and return whether nobody else had locked it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise MeasurementError(
            f"{path} cannot be opened: {error.strerror}; name a folder for such files by {FOLDER}"
        ) from error
    with ExitStack() as opened:
        opened.callback(os.close, descriptor)
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.utime(descriptor)  # old files in /tmp are swept away
            stack.push(opened.pop_all())
            return True
    return False


def _folder() -> Path:
    """Return the folder of the files.

    Not the user's runtime folder, which comes and goes with the user's logins, and not a temporary
    folder that a variable may name: each program has to find the same.
    """
    folder = Path(os.environ.get(FOLDER) or f"/tmp/xsp-cores-{os.getuid()}")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise MeasurementError(
            f"{folder} cannot be made: {error.strerror}; name another folder by {FOLDER}"
        ) from error
    return folder


def _siblings(cpu: int) -> str:
    """Return the CPUs of the physical core that a CPU is of, as the system lists them."""
    try:
        return Path(_TOPOLOGY.format(cpu)).read_text(encoding="ascii").strip()
    except OSError:  # the system does not tell: each CPU counts as a core
        return str(cpu)


def _file_name(core: Core) -> str:
    """Return the name of a core's file: one for all, whichever of its CPUs a program may use."""
    return f"core{re.split(r'[-,]', _siblings(core[0]))[0]}"


def _cpus() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
