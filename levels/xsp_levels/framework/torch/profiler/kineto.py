"""Runs Kineto, PyTorch's profiler, from the making of a recording to its end.

Where there is CUDA, the first use of Kineto subscribes to CUPTI, and before PyTorch 2.15 for as
long as the process lives. CUPTI serves one subscriber, so the kernel level would get none. Also,
later releases have CUPTI record calls for operators alone, and give CUPTI a clock of Kineto's.

The levels record operators of the CPU only. In processes that xsp starts Kineto is initialized
without CUPTI, by the call that PyTorch makes on machines without CUDA, before PyTorch makes the
call. In the user's own process that would crash if PyTorch had made it already, and takes kernels
from the user's torch.profiler. So there, and only where the measurement has the kernel level, xsp
subscribes to CUPTI while Kineto tries to: Kineto then does without, and that is said.

Kineto keeps a thread, which a forked child does not have. When such a child ends by `exit`,
Kineto's destructor waits for the thread for ever (PyTorch 2.15; with or without xsp). Programs that
fork must not begin to hang because they were measured.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from xsp_levels.arming import OWN, undone_on_failure
from xsp_levels.native.stderr_filter import vendor_silenced

_TAKEN = (
    "torch.profiler is already running in this process, and there can be only one; "
    "end it before xsp measures"
)
_MISSING = "this PyTorch was built without Kineto, its profiler"

NAME = "kineto"

_WORKER = "xsp.measuring.target.__main__"  # what processes that xsp starts for a target run
_LOG_LEVEL = "KINETO_LOG_LEVEL"
_SILENT = "99"  # PyTorch has Kineto say as little, once it has initialized Kineto
_GIVES_BACK = (2, 15)  # the PyTorch from which on Kineto does not keep CUPTI

_running: list[KinetoRecording] = []  # at most one recording
_stranded: set[int] = set()  # threads on which a recording could not be ended
_used: list[bool] = []  # of this process: whether Kineto's first use took CUPTI from the user's


class KinetoRecording:
    """One session of Kineto, of all threads if PyTorch can do that, from its making to `end`.

    Args:
        give_way: Called before the user starts a profiler; must end the recording.
        give_up: Called in a forked child, after the session has been ended there.
        detail: Record shapes and memory as well, which PyTorch does for one thread at a time only.
        kernels: Whether the kernel level needs CUPTI in this process.

    Attributes:
        thread: `threading.get_ident()` of the thread that the session began on.
        one_thread: Whether the session sees that thread alone and can be ended there only.

    Raises:
        RuntimeError: The session cannot begin; the message says why.
    """

    def __init__(
        self,
        give_way: Callable[[], None],
        give_up: Callable[[], None],
        *,
        detail: bool,
        kernels: bool,
    ) -> None:
        import torch  # noqa: PLC0415
        from torch.autograd import profiler  # noqa: PLC0415

        self.thread = threading.get_ident()
        self._give_way, self._give_up = give_way, give_up
        _register_fork()
        with vendor_silenced():
            free_thread()
            _refuse()
            self._profile, self.one_thread = _profile(detail)
            primer = torch.empty(1, device="cpu") if detail else None  # memory made unseen
            _running.append(self)
            OWN.add(NAME)
            with undone_on_failure(self._disable):
                with cupti_left_alone(kernels=kernels):
                    self._profile.__enter__()
                self._prepare = profiler._prepare_profiler
                profiler._prepare_profiler = self._step_aside
            # Releasing the tensor makes PyTorch print a one-time warning here, where it is caught.
            del primer

    def may_end_here(self) -> bool:
        """Tell whether the calling thread can end the session."""
        return not self.one_thread or threading.get_ident() == self.thread

    def end(self) -> Any:
        """End the session and return Kineto's results."""
        with vendor_silenced():
            self._disable()
        return self._profile.kineto_results

    def strand(self) -> None:
        """End what can be ended from another thread; `free_thread` ends the rest later."""
        _stranded.add(self.thread)
        self.end()

    def give_up(self) -> None:
        """End the session in a forked child."""
        self.end()
        self._give_up()

    def _disable(self) -> None:
        from torch.autograd import profiler  # noqa: PLC0415

        _running.clear()
        OWN.discard(NAME)
        if getattr(profiler._prepare_profiler, "__self__", None) is self:
            profiler._prepare_profiler = self._prepare
        with contextlib.suppress(RuntimeError):  # the profiler was not running
            self._profile.__exit__(None, None, None)

    def _step_aside(self, *args: Any, **kwargs: Any) -> Any:
        """Stand in for the function that every profiler of PyTorch calls before it begins."""
        self._give_way()
        return self._prepare(*args, **kwargs)


@functools.cache
def _register_fork() -> None:
    os.register_at_fork(after_in_child=_end_in_child)


def _end_in_child() -> None:
    """End the recording, and have the process end right after C's files are flushed.

    C++'s destructors do not run then; Python's exit handlers have run before that.
    """
    for recording in tuple(_running):
        recording.give_up()
    libc = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):  # outside glibc there is no on_exit
        # handlers run in the opposite order, with the exit status as the first argument
        libc.on_exit(libc._exit, None)
        libc.on_exit(libc.fcloseall, None)


def free_thread() -> None:
    """End what an earlier recording had to leave running on the calling thread."""
    import torch  # noqa: PLC0415

    if threading.get_ident() in _stranded:
        _stranded.discard(threading.get_ident())
        if torch.autograd._profiler_enabled():
            torch.autograd._disable_profiler()


def _refuse() -> None:
    import torch  # noqa: PLC0415
    from torch.autograd import profiler  # noqa: PLC0415

    if not torch.autograd.kineto_available():
        raise RuntimeError(_MISSING)
    enabled = torch.autograd._profiler_enabled() or getattr(profiler, "_is_profiler_enabled", False)
    # A profiler with a schedule may be warming up, which nothing else tells.
    steps = getattr(profiler.KinetoStepTracker, "_step_dict", {})
    if enabled or "ProfilerStep" in steps:
        raise RuntimeError(_TAKEN)


def _profile(detail: bool) -> tuple[Any, bool]:
    """Return PyTorch's profiler, not begun yet, and whether it sees one thread only."""
    from torch.autograd.profiler import profile  # noqa: PLC0415

    config, all_threads = _configuration(all_threads=not detail)
    how = {"use_kineto": True, "record_shapes": detail, "profile_memory": detail}
    return profile(**how, experimental_config=config), not all_threads


def _configuration(*, all_threads: bool) -> tuple[Any, bool]:
    """Return the cheapest configuration of this PyTorch, and whether it covers all threads."""
    from torch._C._profiler import _ExperimentalConfig  # noqa: PLC0415

    cheap: dict[str, Any] = {"disable_external_correlation": True}  # only devices need it
    wide: dict[str, Any] = {"profile_all_threads": True} if all_threads else {}
    for options in ({**wide, **cheap}, wide):
        with contextlib.suppress(TypeError):
            return _ExperimentalConfig(**options), bool(wide)
    return _ExperimentalConfig(), False


def deprived() -> bool:
    """Return whether a profiler of the user's sees no kernels in this process."""
    return any(_used)


@contextlib.contextmanager
def cupti_left_alone(*, kernels: bool) -> Iterator[None]:
    """Keep Kineto from using CUPTI if Kineto is used in the block for the first time."""
    import torch  # noqa: PLC0415

    if _used or torch.version.cuda is None:
        yield
    elif getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", "") == _WORKER:
        _used.append(False)
        initialize(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")
        yield
    elif kernels and tuple(map(int, torch.__version__.split(".")[:2])) < _GIVES_BACK:
        with subscribed(f"libcupti.so.{torch.version.cuda.split('.')[0]}") as alone:
            _used.append(alone)
            yield
    else:
        _used.append(False)
        yield


def initialize(path: Path) -> None:
    """Initialize Kineto without CUPTI, in the file that is loaded as `libtorch_cpu.so`."""
    with contextlib.suppress(OSError, AttributeError):
        init = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_LAZY).libkineto_init
        init.argtypes, init.restype = (ctypes.c_bool, ctypes.c_bool), None
        with _quiet():
            init(True, False)  # for the CPU only; without a message if CUPTI cannot be used


@contextlib.contextmanager
def subscribed(library: str) -> Iterator[bool]:
    """Subscribe to a loaded CUPTI for the block, and yield whether that worked."""
    try:
        cupti = ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        yield False
        return
    callback = ctypes.CFUNCTYPE(None)(lambda: None)  # never called: no event is asked for
    subscriber = ctypes.c_void_p()
    if cupti.cuptiSubscribe(ctypes.byref(subscriber), callback, None) != 0:
        yield False
        return
    try:
        yield True
    finally:
        cupti.cuptiUnsubscribe(subscriber)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence Kineto, which reads a variable when it is initialized."""
    if _LOG_LEVEL in os.environ:
        yield
        return
    os.environ[_LOG_LEVEL] = _SILENT
    try:
        yield
    finally:
        del os.environ[_LOG_LEVEL]
