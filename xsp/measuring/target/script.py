"""Runs a Python file with its arguments in this process, as `python FILE` does."""

from __future__ import annotations

import atexit
import builtins
import io
import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from traceback import walk_stack
from types import ModuleType, TracebackType
from typing import Any, NoReturn

from xsp.errors import UnknownTargetError
from xsp.measuring.target.spec import hint

_LOOKS = 3  # in a row that find all threads waiting for work: one may be about to begin
_PATIENCE_S = 0.01  # between two of them
# Python leaves importlib's frames out of a traceback, but not where xsp imports a module.
_OWN = (str(Path(__file__).parents[2]) + os.sep, "<frozen importlib")


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a script, with its exit code and the exception, if any.

    Attributes:
        code: Exit code of the script.
        error: The exception that ended the script, already shown to the user; None if
            the script ran to its end or left by `sys.exit`.
        forked: Whether this process is a child that the script forked.
    """

    code: int
    error: BaseException | None = None
    forked: bool = False

    @property
    def failure(self) -> str:
        """Exception or exit code that ended the script; empty if it ended well."""
        if self.error is not None:
            return type(self.error).__name__
        return f"exit code {self.code}" if self.code else ""

    def reraise(self) -> None:
        """Raise the exception that ended the script, if one did."""
        if self.error is not None:
            raise self.error


def run_script(path: str, arguments: Sequence[str]) -> Ending:
    """Run a script as the main program, up to the end of its threads.

    `sys.argv`, `__main__` and `sys.path[0]` are set as the script expects, and stay so for
    functions that the script registered to run at exit. An exception is shown as Python
    would show it, without frames of xsp.

    Args:
        path: The script.
        arguments: What follows the script's name in its `sys.argv`.

    Raises:
        UnknownTargetError: The file cannot be read.
    """
    source = _read(path)
    process = os.getpid()
    _become_main(path, arguments)
    ending = _run(path, source)
    if os.getpid() != process:
        return Ending(ending.code, ending.error, forked=True)
    _join_threads()
    return ending


def without_own_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of xsp, its providers and the import machinery."""
    frames = []
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    # Without recursion: endless recursion may be what the traceback is of.
    for frame in reversed(frames):
        file = frame.tb_frame.f_code.co_filename
        if not (file.startswith(_OWN) or f"{os.sep}xsp_levels{os.sep}" in file):
            traceback = TracebackType(traceback, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return traceback


def end_by_signal(number: signal.Signals) -> NoReturn:
    """End this process as Python does on Ctrl-C, or by another signal: exit hooks first."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    raise SystemExit(128 + number)  # reached where the signal is blocked


def _read(path: str) -> bytes:
    try:
        with io.open_code(str(Path(path).absolute())) as file:
            return file.read()
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnknownTargetError(f"Cannot read the script {path}: {reason}{hint(path)}") from error


def _become_main(path: str, arguments: Sequence[str]) -> None:
    main = ModuleType("__main__")
    file = str(Path(path).absolute())  # as Python sets it; sys.argv keeps the path as given
    loader = SourceFileLoader("__main__", file)
    facts: dict[str, Any] = {
        "__file__": file,
        "__builtins__": builtins,
        "__loader__": loader,
        "__cached__": None,
    }
    if sys.version_info < (3, 14):  # from 3.14 on annotations are evaluated when read
        facts["__annotations__"] = {}
    main.__dict__.update(facts)
    sys.modules["__main__"] = main
    sys.argv = [path, *arguments]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = str(Path(path).resolve().parent)


def _run(path: str, source: bytes) -> Ending:
    try:
        code = compile(source, str(Path(path).absolute()), "exec", dont_inherit=True)
        exec(code, sys.modules["__main__"].__dict__)
    except SystemExit as ended:
        return Ending(_exit_code(ended))
    except BaseException as error:  # noqa: BLE001  shown, and returned to the caller
        error.__traceback__ = without_own_frames(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        interrupted = isinstance(error, KeyboardInterrupt)
        return Ending(128 + signal.SIGINT if interrupted else 1, error)
    return Ending(0)


def _exit_code(ended: SystemExit) -> int:
    if ended.code is None:
        return 0
    if isinstance(ended.code, int):
        return ended.code
    sys.stderr.write(f"{ended.code}\n")
    return 1


def _join_threads() -> None:
    """Wait for the script's threads, as the interpreter does at the end of `__main__`.

    Pools that the script left open have threads that wait for work until the interpreter ends.
    """
    own, looks = threading.current_thread(), 0
    while looks < _LOOKS:
        threads = [each for each in threading.enumerate() if each is not own and not each.daemon]
        busy = [thread for thread in threads if not _waits_for_work(thread)]
        if not threads:
            return
        looks = 0 if busy else looks + 1
        (*busy, threads[0])[0].join(_PATIENCE_S)


def _waits_for_work(thread: threading.Thread) -> bool:
    """Return whether a thread is that of a pool, of threads or of processes, that has no work."""
    frame = sys._current_frames().get(thread.ident or 0)
    if frame is None:
        return False
    if hasattr(thread, "pending_work_items"):  # it looks after processes
        names = {each.f_code.co_name for each, _ in walk_stack(frame)}
        return not thread.pending_work_items and "wait_result_broken_or_wakeup" in names
    pools: Any = sys.modules.get("concurrent.futures.thread")
    queue = getattr(pools, "_threads_queues", {}).get(thread)
    return queue is not None and queue.empty() and frame.f_code is pools._worker.__code__
