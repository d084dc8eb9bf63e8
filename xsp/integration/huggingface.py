"""A callback for the `Trainer` of Hugging Face's transformers (and of trl).

Example:
    Profile a training, and find the trace in `xsp-traces/train.xsp`::

        from xsp.integration.huggingface import XspCallback

        Trainer(model, args, train_dataset=data, callbacks=[XspCallback()]).train()
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from xsp.integration.training import TrainingProfile

__all__ = ["XspCallback"]


class XspCallback(TrainerCallback):  # type: ignore[misc]  # transformers is loaded lazily
    """Profiles `Trainer.train()`, the evaluations within it included.

    Args:
        arguments: Those of `xsp.integration.training.TrainingProfile`.

    Attributes:
        training: The `TrainingProfile`, with the last `trace` and its `path`.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.training = TrainingProfile(*arguments, **options)

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Begin with the training."""
        self.training.begin("train")

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """End with the training."""
        self.training.end("train")
