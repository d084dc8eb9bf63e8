"""A tracker for Hugging Face's Accelerate.

Example:
    Profile from `init_trackers` to `end_training`, into `xsp-traces/accelerate.xsp`::

        from xsp.integration.accelerate import XspTracker

        accelerator = Accelerator(log_with=XspTracker())
        accelerator.init_trackers("experiment")
        ...
        accelerator.end_training()
"""

from __future__ import annotations

from typing import Any

from accelerate.tracking import GeneralTracker  # type: ignore[import-untyped]

from xsp.integration.training import TrainingProfile

__all__ = ["XspTracker"]


class XspTracker(GeneralTracker):  # type: ignore[misc]  # accelerate has no types
    """Profiles from `Accelerator.init_trackers` to `Accelerator.end_training`.

    Args:
        arguments: Those of `xsp.integration.training.TrainingProfile`.

    Attributes:
        training: The `TrainingProfile`, with the last `trace` and its `path`.
    """

    name = "xsp"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__()
        self.training = TrainingProfile(*arguments, **options)

    @property
    def tracker(self) -> TrainingProfile:
        """The profile, which `accelerator.get_tracker("xsp", unwrap=True)` returns."""
        return self.training

    def start(self) -> None:
        """Begin with `init_trackers`."""
        self.training.begin("accelerate")

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Take no notice of the run's configuration."""

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Take no notice of the metrics that the program logs."""

    def finish(self) -> None:
        """End with `end_training`."""
        self.training.end("accelerate")
