"""The models that the benchmarks measure: random weights, eval mode, inputs made from a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torchvision.models import mobilenet_v3_large, resnet50, vit_b_16
from transformers import BertConfig, BertModel

TOKENS = 128  # length of the sequences that BERT reads
WIDTH = 64  # of the small transformer: overhead is half of everything there


@dataclass(frozen=True, slots=True)
class Case:
    """One model with one input."""

    name: str
    batch: int
    model: nn.Module
    inputs: torch.Tensor

    def evaluate(self) -> object:
        """Call the model once."""
        return self.model(self.inputs)


class Recurrent(nn.Module):
    """Two LSTM layers and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(64, 128, num_layers=2, batch_first=True)
        self.classifier = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Classify by the last step's output."""
        return self.classifier(self.lstm(x)[0][:, -1])


class Block(nn.Module):
    """A pre-norm transformer block written with small modules, as most models are."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.project = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend, then transform; both added to the input."""
        y = self.norm1(x)
        scores = self.query(y) @ self.key(y).transpose(-2, -1) / y.shape[-1] ** 0.5
        x = x + self.project(scores.softmax(-1) @ self.value(y))
        return x + self.mlp(self.norm2(x))


def _image(model: Callable[..., nn.Module]) -> Callable[[int], tuple[nn.Module, torch.Tensor]]:
    return lambda batch: (model(weights=None), torch.randn(batch, 3, 224, 224))


def _bert(batch: int) -> tuple[nn.Module, torch.Tensor]:
    config = BertConfig()
    return BertModel(config), torch.randint(0, config.vocab_size, (batch, TOKENS))


def _lstm(batch: int) -> tuple[nn.Module, torch.Tensor]:
    return Recurrent(), torch.randn(batch, 32, 64)


def _small_transformer(batch: int) -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(*(Block(WIDTH) for _ in range(6))), torch.randn(batch, 16, WIDTH)


def _mlp(batch: int) -> tuple[nn.Module, torch.Tensor]:
    layers = (nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return nn.Sequential(*layers), torch.randn(batch, 32)


MODELS: dict[str, Callable[[int], tuple[nn.Module, torch.Tensor]]] = {
    "ResNet-50": _image(resnet50),
    "MobileNet-v3-large": _image(mobilenet_v3_large),
    "ViT-B/16": _image(vit_b_16),
    "BERT-base": _bert,
    "LSTM, 2 layers": _lstm,
    "transformer, 6 small": _small_transformer,
    "MLP, tiny": _mlp,
}
QUICK = ("LSTM, 2 layers", "transformer, 6 small", "MLP, tiny")


def make(name: str, batch: int) -> Case:
    """Return a model by its name in `MODELS`; the same weights and inputs each time."""
    torch.manual_seed(0)
    model, inputs = MODELS[name](batch)
    return Case(name, batch, model.eval(), inputs)
