"""Models and data of the programs that `overhead_table.py` runs under tools.

Two classes of layers of each model are timed by the program itself (`tool_clock.CLOCK`). They are
classes of their own, so that profilers of Python report them by their `forward`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from tool_clock import CLOCK
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset

WIDTH = 64
BATCH = 8
Train = Callable[[Tensor, Tensor], Tensor]


class Attention(nn.Module):
    """Attention of one head, written with small modules."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.project = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Attend."""
        scores = self.query(x) @ self.key(x).transpose(-2, -1) / WIDTH**0.5
        return self.project(scores.softmax(-1) @ self.value(x))


class FeedForward(nn.Module):
    """Two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.act = nn.Linear(WIDTH, 4 * WIDTH), nn.GELU()
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Transform each token."""
        return self.down(self.act(self.up(x)))


class TransformerBlock(nn.Module):
    """A pre-norm block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.mlp = Attention(), FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        """Attend, then transform; both added to the input."""
        x = x + CLOCK("Attention", self.attention, self.norm1(x))
        return x + CLOCK("FeedForward", self.mlp, self.norm2(x))


class Transformer(nn.Module):
    """Six small blocks: overhead is large beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(TransformerBlock() for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the blocks."""
        for block in self.blocks:
            x = block(x)
        return x


class Convolution(nn.Module):
    """A convolution with normalization."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(before, after, 3, padding=1)
        self.norm = nn.BatchNorm2d(after)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve."""
        return functional.relu(self.norm(self.convolution(x)))


class Head(nn.Module):
    """Pools and classifies."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Classify."""
        return self.linear(x.mean((2, 3)))


class Convolutional(nn.Module):
    """Four convolutions and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 8, 16, 16, 32)
        self.stages = nn.ModuleList(map(Convolution, widths, widths[1:]))
        self.head = Head(widths[-1])

    def forward(self, x: Tensor) -> Tensor:
        """Classify images."""
        for number, stage in enumerate(self.stages):
            x = CLOCK("Convolution", stage, x)
            if number % 2:
                x = functional.max_pool2d(x, 2)
        return CLOCK("Head", self.head, x)


def batch() -> tuple[Tensor, Tensor]:
    """Make random images of 32 x 32 pixels, and labels."""
    return torch.randn(BATCH, 3, 32, 32), torch.randint(0, 10, (BATCH,))


def trained(model: nn.Module) -> Train:
    """Make the training step of a model, after three that warm it up."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def train(images: Tensor, labels: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(3):
        train(*batch())
    return train


class Images(IterableDataset[tuple[Tensor, int]]):
    """Random images without end, each turned and normalized."""

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        while True:
            image = torch.randint(0, 256, (3, 32, 32), dtype=torch.uint8)
            yield (image.flip(2).float() / 255 - 0.5) / 0.25, int(image[0, 0, 0]) % 10


def endless_batches(workers: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches that forked processes make; they are forked when the first is asked for."""
    context = "fork" if workers else None
    yield from DataLoader(
        Images(), batch_size=BATCH, num_workers=workers, multiprocessing_context=context
    )
