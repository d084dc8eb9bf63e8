"""Tiny models and trainers; importing them takes seconds, so tests do when they run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytorch_lightning
import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from torch.nn.functional import cross_entropy
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from xsp.integration.accelerate import XspTracker
from xsp.integration.huggingface import XspCallback as HuggingFaceCallback
from xsp.integration.lightning import XspCallback as LightningCallback
from xsp.integration.lightning import XspProfiler as LightningProfiler

__all__ = [
    "Accelerator",
    "Classifier",
    "HuggingFaceCallback",
    "LightningCallback",
    "LightningProfiler",
    "XspTracker",
    "bert",
    "lightning",
]

STEPS = 8


class Classifier(pytorch_lightning.LightningModule):
    def __init__(self, fails_at: int = -1) -> None:
        super().__init__()
        self.network = torch.nn.Linear(16, 4)
        self.fails_at = fails_at

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        if number == self.fails_at:
            raise RuntimeError("the batch is bad")
        features, target = batch
        return cross_entropy(self.network(features), target)

    def validation_step(self, batch: list[torch.Tensor], number: int) -> None:
        self.network(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def lightning(folder: Path, **options: Any) -> pytorch_lightning.Trainer:
    return pytorch_lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **options,
    )


def bert(folder: Path, *callbacks: Any) -> Trainer:
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = BertForSequenceClassification(BertConfig(**size, intermediate_size=16, vocab_size=9))
    tokens = torch.randint(0, 9, (4 * STEPS, 8))
    data = [{"input_ids": row, "labels": torch.tensor(0)} for row in tokens]
    return Trainer(
        model,
        TrainingArguments(
            str(folder),
            max_steps=STEPS,
            per_device_train_batch_size=4,
            report_to=[],
            use_cpu=True,
            save_strategy="no",
            disable_tqdm=True,
            logging_strategy="no",
        ),
        train_dataset=data,
        callbacks=list(callbacks),
    )
