"""A callback for Keras's `fit`, `evaluate` and `predict`.

Example:
    Profile a fit, and find the trace in `xsp-traces/fit.xsp`::

        from xsp.integration.keras import XspCallback

        model.fit(x, y, callbacks=[XspCallback()])
"""

from __future__ import annotations

from typing import Any

import keras

from xsp.integration.training import TrainingProfile

__all__ = ["XspCallback"]


class XspCallback(keras.callbacks.Callback):  # type: ignore[misc]  # keras has no types
    """Profiles `fit`, or an `evaluate` or `predict` outside of it.

    Args:
        arguments: Those of `xsp.integration.training.TrainingProfile`.

    Attributes:
        training: The `TrainingProfile`, with the last `trace` and its `path`.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__()
        self.training = TrainingProfile(*arguments, **options)

    def on_train_begin(self, logs: Any = None) -> None:
        """Begin with `fit`."""
        self.training.begin("fit")

    def on_train_end(self, logs: Any = None) -> None:
        """End with `fit`."""
        self.training.end("fit")

    def on_test_begin(self, logs: Any = None) -> None:
        """Begin with `evaluate`."""
        self.training.begin("evaluate")

    def on_test_end(self, logs: Any = None) -> None:
        """End with `evaluate`."""
        self.training.end("evaluate")

    def on_predict_begin(self, logs: Any = None) -> None:
        """Begin with `predict`."""
        self.training.begin("predict")

    def on_predict_end(self, logs: Any = None) -> None:
        """End with `predict`."""
        self.training.end("predict")
