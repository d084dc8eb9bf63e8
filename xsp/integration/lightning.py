"""A callback and a profiler for Lightning's `Trainer`.

Example:
    Profile a fit, and find the trace in `xsp-traces/fit.xsp`::

        from xsp.integration.lightning import XspCallback

        Trainer(callbacks=[XspCallback(levels=2)]).fit(module, loader)
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from xsp.errors import MeasurementError
from xsp.integration.training import TrainingProfile, verdict
from xsp.tracer import span

if TYPE_CHECKING:
    from pytorch_lightning import Callback, LightningModule, Trainer
    from pytorch_lightning.profilers import Profiler
else:
    # Lightning is published under two names, and each takes only callbacks of its own.
    _NAMES = ("lightning.pytorch", "pytorch_lightning")

    def _package() -> ModuleType:
        for name in sorted(_NAMES, key=lambda name: name not in sys.modules):
            try:
                return import_module(name)
            except ModuleNotFoundError:
                continue
        raise MeasurementError("Lightning is not installed. Install it: pip install lightning.")

    _lightning = _package()
    Callback, Profiler = _lightning.Callback, _lightning.profilers.Profiler

__all__ = ["XspCallback", "XspProfiler"]


class XspCallback(Callback):
    """Profiles what a `Trainer` does: fit, validate, test and predict.

    Args:
        arguments: Those of `xsp.integration.training.TrainingProfile`: `levels`, `folder`, `name`,
            `schedule`, `report`, and options of `xsp.profile`.

    Attributes:
        training: The `TrainingProfile`, with the last `trace` and its `path`.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__()
        self.training = TrainingProfile(*arguments, **options)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Begin with the stage."""
        self.training.begin(stage)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """End with the stage."""
        self.training.end(stage)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Keep what was recorded until an exception ended the stage."""
        self.training.end(error=exception)


class XspProfiler(Profiler):
    """Profiles as `XspCallback` does, with a span for each action that Lightning names.

    Example:
        `Trainer(profiler=XspProfiler())`.

    Args:
        arguments: As for `XspCallback`.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__()
        self.training = TrainingProfile(*arguments, **options)
        self._open: dict[str, list[span]] = {}

    def setup(self, stage: str, local_rank: int | None = None, log_dir: str | None = None) -> None:
        """Begin with the stage."""
        super().setup(stage, local_rank, log_dir)
        self.training.begin(stage)

    def describe(self) -> None:
        """End with the stage: Lightning asks for the description then."""
        self.training.end()

    def start(self, action_name: str) -> None:
        """Open a span for an action."""
        opened = span(action_name)
        opened.__enter__()
        self._open.setdefault(action_name, []).append(opened)

    def stop(self, action_name: str) -> None:
        """Close the span of an action."""
        if self._open.get(action_name):
            self._open[action_name].pop().__exit__(None, None, None)

    def summary(self) -> str:
        """Say what the last trace says; empty before the first."""
        return "" if self.training.trace is None else verdict(self.training.trace)
