"""Profiles a training from its begin to its end, saves the trace, and logs what it says."""

from __future__ import annotations

import atexit
import logging
import re
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from xsp.delivery import bound
from xsp.errors import AnalysisError, XspError
from xsp.level import LevelSet
from xsp.measuring.program import profile, schedule
from xsp.record.rank import identity
from xsp.trace import Trace, headline

_log = logging.getLogger("xsp")
_WATCH_S = 0.25
# Functions of trainers that last as long as what they do.
_TRAINING = frozenset({"fit", "train", "validate", "test", "evaluate", "predict"})
_written: dict[Path, int] = {}  # how many traces of this process have such a name


class EarlyEnd(Exception):  # noqa: N818  # its name stands in the trace's warning
    """The trainer's function was left by an exception that it told nobody of."""


class TrainingProfile:
    """A profile that a trainer's callbacks begin and end.

    A training is never stopped by its profile: what fails is logged as a warning.

    Args:
        levels: What to record, as for `xsp.profile`.
        folder: Folder for the traces; made if it is missing.
        name: Name of the trace, and begin of its file's; by default what the trainer calls the
            stage.
        schedule: The steps to record (`xsp.schedule`); by default all.
        report: Whether to write the HTML page beside the trace.
        options: Further arguments of `xsp.profile`, such as `budget`.

    Attributes:
        trace: The trace of the last training that ended; None before.
        path: Its file; None where it could not be saved.
    """

    def __init__(
        self,
        levels: LevelSet = 2,
        *,
        folder: str | Path = "xsp-traces",
        name: str | None = None,
        schedule: schedule | None = None,
        report: bool = False,
        **options: Any,
    ) -> None:
        self.trace: Trace | None = None
        self.path: Path | None = None
        self._folder, self._name, self._report = Path(folder), name, report
        self._options = {"progress": False, **options, "levels": levels, "schedule": schedule}
        self._new("")  # wrong arguments are refused here, not hours later
        self._profile: profile | None = None
        self._stage = ""
        self._rank: int | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()

    def _new(self, stage: str) -> profile:
        named = {"on_busy": "skip", "name": self._name or stage}
        return profile(**{**named, **self._options})

    @property
    def running(self) -> bool:
        """Whether a training is being profiled."""
        return self._profile is not None

    def begin(self, stage: str) -> None:
        """Begin to profile, unless a stage around this one is profiled already.

        Args:
            stage: What the trainer does: `fit`, `validate`, `predict`.
        """
        if self._profile is not None:
            return
        self._stage = stage = str(getattr(stage, "value", stage))  # Lightning's are enumerations
        begun = self._new(stage)
        begun.__enter__()
        self._profile = begun
        self._rank = _rank()
        atexit.register(self.end)
        self._ended = threading.Event()
        frame = _training_frame(sys._getframe(1))
        if frame is not None:
            key = (threading.get_ident(), id(frame), frame.f_code)
            watch = threading.Thread(target=self._watch, args=(self._ended, *key), daemon=True)
            watch.start()

    def end(self, stage: str | None = None, error: BaseException | None = None) -> None:
        """End the profile that began with a stage, save its trace and log its verdict.

        Args:
            stage: What the trainer did; None: whatever is profiled.
            error: What ended the stage early.
        """
        stage = self._stage if stage is None else str(getattr(stage, "value", stage))
        with self._lock:
            if self._profile is None or stage != self._stage:
                return
            ended, self._profile = self._profile, None
        self._ended.set()
        atexit.unregister(self.end)
        ended.__exit__(None if error is None else type(error), error, None)
        try:
            self.trace = ended.trace
        except XspError as failure:
            _log.warning("xsp: there is no trace of this %s. %s", stage, failure)
            return
        self._keep(self.trace, stage)

    def _watch(self, ended: threading.Event, thread: int, number: int, code: CodeType) -> None:
        """End the profile if the trainer's function is left without a word: by an exception.

        Hugging Face's Trainer, Keras, and Lightning of its profiler, do not tell callbacks.
        """
        while not ended.wait(_WATCH_S):
            frame = sys._current_frames().get(thread)
            while frame is not None and (id(frame) != number or frame.f_code is not code):
                frame = frame.f_back
            if frame is None and not ended.is_set():
                self.end(error=EarlyEnd())
                return

    def _keep(self, trace: Trace, stage: str) -> None:
        rank = _rank() if self._rank is None else self._rank
        of_rank = "" if rank is None else f"-rank{rank}"
        named = stage if self._name is None else f"{self._name}-{stage}"
        name = re.sub(r"[^\w.-]+", "_", named)
        self.path = None
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            path = (self._folder / f"{name}{of_rank}.xsp").absolute()
            _written[path] = number = _written.get(path, 0) + 1  # a second one has its own file
            again = path.with_stem(f"{path.stem}-{number}")
            self.path = trace.save(path if number == 1 else again)
            if self._report:
                trace.report(self.path.with_suffix(".html"))
        except (XspError, OSError, ModuleNotFoundError) as failure:
            _log.warning("xsp: the trace of the %s is not saved whole. %s", stage, failure)
        if not rank:
            _say(verdict(trace))
            if self.path is not None:
                _say(f"saved to {self.path}; see it with: xsp show {self.path}")


def _rank() -> int | None:
    """Find the number of this process among ranks; None if it is alone."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank() if distributed.get_world_size() > 1 else None
    told = identity()
    return None if told is None or told.size == 1 else told.rank


def _training_frame(frame: FrameType | None) -> FrameType | None:
    """Find the trainer's function that called the callback; None if a program calls it itself."""
    while frame is not None and (
        frame.f_code.co_name not in _TRAINING or frame.f_globals.get("__name__") == "__main__"
    ):
        frame = frame.f_back
    return frame


def verdict(trace: Trace) -> str:
    """Say in one or two lines how long a step took, and what to look at next.

    Args:
        trace: Any trace.
    """
    said = [str(line) for line in trace.metadata.get("summary", ())]
    rates = [line for line in said if line.startswith(("training:", "inference:"))]
    lines = [headline(trace.spans, trace.metadata).split(" \u00b7 ")[0], *(rates or said[:2])]
    with suppress(AnalysisError):  # too little for advice
        lines += [f"look next: {said}" for said, _ in bound("look_next")(trace)[:1]]
    return "\n".join(lines)


def _say(text: str) -> None:
    """Log lines so that they are seen even if the program has not configured logging."""
    if _log.level == logging.NOTSET:
        _log.setLevel(logging.INFO)
    if not _log.hasHandlers():
        _log.addHandler(logging.StreamHandler())
    for line in text.splitlines():
        _log.info("xsp: %s", line)
