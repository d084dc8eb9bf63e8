"""Settings in, the events that Kineto, PyTorch's profiler, records until `end` out."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from xsp_levels.arming import OWN, undone_on_failure
from xsp_levels.framework.torch.profiler.cpu_only import cupti_left_alone
from xsp_levels.framework.torch.profiler.fork import leave_children_unharmed
from xsp_levels.native.stderr_filter import vendor_silenced

_TAKEN = (
    "torch.profiler is already running in this process, and there can be only one; "
    "end it before xsp measures"
)
_MISSING = "this PyTorch was built without Kineto, its profiler"

NAME = "kineto"

_running: list[KinetoRecording] = []  # at most one recording
_stranded: set[int] = set()  # threads on which a recording could not be ended


class KinetoRecording:
    """One session of Kineto, of all threads if PyTorch can do that, from its making to `end`.

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
        """Begin to record CPU operators.

        Args:
            give_way: Called before the user starts a profiler; must end the recording.
            give_up: Called in a forked child, after the session has been ended there.
            detail: Record shapes and memory as well, which PyTorch does for one
                thread at a time only.
            kernels: Whether the kernel level needs CUPTI in this process.
        """
        self.thread = threading.get_ident()
        self._give_way, self._give_up = give_way, give_up
        leave_children_unharmed(_end_in_child)
        with vendor_silenced():
            _free_thread()
            _refuse()
            self._profile, self.one_thread = _profile(detail)
            primer = _unseen_memory() if detail else None
            _running.append(self)
            OWN.add(NAME)
            with undone_on_failure(self._disable):
                with cupti_left_alone(kernels=kernels):
                    self._profile.__enter__()
                self._watch_for_rivals()
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
        """End what can be ended from another thread; `_free_thread` ends the rest later."""
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

    def _watch_for_rivals(self) -> None:
        from torch.autograd import profiler  # noqa: PLC0415

        self._prepare = profiler._prepare_profiler
        profiler._prepare_profiler = self._step_aside

    def _step_aside(self, *args: Any, **kwargs: Any) -> Any:
        """Stand in for the function that every profiler of PyTorch calls before it begins."""
        self._give_way()
        return self._prepare(*args, **kwargs)


def _end_in_child() -> None:
    for recording in tuple(_running):
        recording.give_up()


def _free_thread() -> None:
    """End what an earlier recording had to leave running on this thread."""
    import torch  # noqa: PLC0415

    if threading.get_ident() in _stranded:
        _stranded.discard(threading.get_ident())
        if torch.autograd._profiler_enabled():
            torch.autograd._disable_profiler()


def _refuse() -> None:
    """Raise if a recording must not begin: two profilers at once spoil each other."""
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
    made = profile(
        use_kineto=True,
        record_shapes=detail,
        profile_memory=detail,
        experimental_config=config,
    )
    return made, not all_threads


def _configuration(*, all_threads: bool) -> tuple[Any, bool]:
    """Return the cheapest configuration of this PyTorch, and whether it covers all threads."""
    from torch._C._profiler import _ExperimentalConfig  # noqa: PLC0415

    cheap: dict[str, Any] = {"disable_external_correlation": True}  # only devices need it
    wide: dict[str, Any] = {"profile_all_threads": True} if all_threads else {}
    for options in ({**wide, **cheap}, wide):
        with contextlib.suppress(TypeError):
            return _ExperimentalConfig(**options), bool(wide)
    return _ExperimentalConfig(), False


def _unseen_memory() -> Any:
    import torch  # noqa: PLC0415

    return torch.empty(1, device="cpu")
