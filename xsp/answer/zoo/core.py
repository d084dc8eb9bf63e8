"""Cores: holds the cores of a measurement, so that no other one of this user's runs on them.

Who holds a core holds the lock of a file, in a folder that all programs of the user on this machine
share. The system lets go of the lock when its holder ends, however it ends.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from xsp.errors import MeasurementError

# Not the user's runtime folder, which comes and goes with the user's logins, and not a temporary
# folder that a variable may name: each program has to find the same.
FOLDER = Path(f"/tmp/xsp-cores-{os.getuid()}")

Core = tuple[int, ...]  # its logical CPUs, ascending

_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
_POLL_S = 0.1


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
    cores = chosen(None)
    try:
        FOLDER.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise MeasurementError(f"{FOLDER} cannot be made: {error.strerror}") from error
    wanted = min(number or len(cores), len(cores))
    taken: list[Core] = []
    told = waiting is None
    with ExitStack() as stack:
        turn = stack.enter_context(ExitStack())
        # Only who has the turn takes cores, so no two can wait for one another.
        has_turn = _locked(FOLDER / "turn", turn)
        while len(taken) < wanted:
            if has_turn:
                for core in cores:
                    name = f"core{re.split(r'[-,]', _siblings(core[0]))[0]}"  # one for all its CPUs
                    if len(taken) < wanted and core not in taken and _locked(FOLDER / name, stack):
                        taken.append(core)
            if len(taken) < wanted:
                if waiting is not None and not told:
                    waiting()
                told = True
                time.sleep(_POLL_S)
                has_turn = has_turn or _locked(FOLDER / "turn", turn)
        turn.close()
        with pinned(tuple(taken)):
            yield tuple(taken)


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


def usable() -> tuple[Core, ...]:
    """Return the physical cores that this thread may run on."""
    siblings: dict[str, list[int]] = {}
    for cpu in _cpus():
        siblings.setdefault(_siblings(cpu), []).append(cpu)
    return tuple(tuple(cpus) for cpus in siblings.values())


def chosen(number: int | None) -> tuple[Core, ...]:
    """Return the cores that are taken first where none is held."""
    # The system serves its devices on the first cores, rather than on the last.
    return tuple(reversed(usable()))[:number]


def _locked(path: Path, stack: ExitStack) -> bool:
    """Lock a file until the stack is unwound, and return whether nobody else had locked it."""
    try:
        stack.enter_context(FileLock(path, timeout=0, mode=0o600))
        os.utime(path)  # old files in /tmp are swept away
    except Timeout:
        return False
    except OSError as error:
        raise MeasurementError(f"{path} cannot be opened: {error.strerror}") from error
    return True


def _siblings(cpu: int) -> str:
    """Return the CPUs of the physical core that a CPU is of, as the system lists them."""
    try:
        return Path(_TOPOLOGY.format(cpu)).read_text(encoding="ascii").strip()
    except OSError:  # the system does not tell: each CPU counts as a core
        return str(cpu)


def _cpus() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
