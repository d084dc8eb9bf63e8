"""Programs written with PyTorch alone: training, diffusion, unlike shapes, a GAN, a server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import torch
from clocked import Clock, Label, Program
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset

LOADING_S = 0.001  # of one sample; a batch has eight


class Slow(Dataset[Any]):
    """Samples that take a while to load."""

    def __init__(self, batches: int, samples: int = 8) -> None:
        self._inputs = torch.randn(batches * samples, 64)
        self._targets = torch.randint(0, 10, (batches * samples,))

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._inputs)

    def __getitem__(self, index: int) -> Any:
        """Load one sample."""
        time.sleep(LOADING_S)
        return self._inputs[index], self._targets[index]


class Down(nn.Module):
    """Half of a U-Net: convolutions at two sizes, and what the other half adds."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.middle = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.outer = nn.ConvTranspose2d(2 * width, width, 2, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Go down, and up again."""
        return x + self.outer(functional.silu(self.middle(functional.silu(self.inner(x)))))


class UNet(nn.Module):
    """A small denoiser: predicts the noise in an image at a time."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.time = nn.Linear(1, width)
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.Sequential(Down(width), Down(width))
        self.last = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        """Guess the noise in an image."""
        y = self.first(x) + self.time(t)[:, :, None, None]
        return self.last(functional.silu(self.blocks(y)))


class Generator(nn.Sequential):
    """Makes samples of noise."""


class Discriminator(nn.Sequential):
    """Scores how real samples look."""


def mlp(kind: type[nn.Sequential], *widths: int) -> nn.Sequential:
    """Return linear layers with rectifiers between."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return kind(*layers[:-1])


def loading(clock: Clock) -> Program:
    """A training loop that waits for data: 8 ms of loading, less than a millisecond of step."""
    data = DataLoader(Slow(80), batch_size=8)
    model = mlp(nn.Sequential, 64, 256, 10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    clock.steps([model], optimizer)

    def run() -> None:
        for inputs, targets in data:
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()

    return Program(run, clock, {"model": model, "optimizer": optimizer})


def accumulation(clock: Clock) -> Program:
    """Gradients of four micro-batches for each step, and a moving average of the weights."""
    model = mlp(nn.Sequential, 64, 256, 10)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 300)
    batches = [(torch.randn(8, 64), torch.randint(0, 10, (8,))) for _ in range(1200)]
    clock.steps([model], optimizer)

    def run() -> None:
        for number, (inputs, targets) in enumerate(batches, 1):
            (functional.cross_entropy(model(inputs), targets) / 4).backward()
            if number % 4 == 0:
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                average.update_parameters(model)

    return Program(run, clock, {"model": model, "optimizer": optimizer, "average": average})


def diffusion(clock: Clock) -> Program:
    """Images out of noise: 20 steps of a denoiser, and arithmetic between."""
    model = UNet().eval()
    noise = [torch.randn(2, 3, 32, 32) for _ in range(12)]
    clock.calls(model, lambda *_: Label("UNet"))

    @torch.no_grad()
    def run() -> list[torch.Tensor]:
        return [denoised(model, each) for each in noise]

    return Program(run, clock, {"model": model})


def denoised(model: nn.Module, image: torch.Tensor) -> torch.Tensor:
    """Take the noise out of an image, little by little, with a little new noise each time."""
    for step in range(20, 0, -1):
        t = torch.full((len(image), 1), step / 20)
        guess = model(image, t)
        mean = (image - 0.05 * guess) / (1 - 0.05) ** 0.5
        image = (mean + 0.01 * torch.randn_like(image)).clamp(-3, 3)
    return image


def shapes(clock: Clock) -> Program:
    """Batches of 1 and of 256 in turns."""
    model = mlp(nn.Sequential, 256, 512, 512, 10).eval()
    batches = [torch.randn(size, 256) for size in (1, 256)] * 300
    clock.calls(model, lambda x: Label("Sequential", shape=f"{len(x)}×256"))

    @torch.no_grad()
    def run() -> list[torch.Tensor]:
        return [model(batch).argmax(-1) for batch in batches]

    return Program(run, clock, {"model": model})


def gan(clock: Clock) -> Program:
    """Two networks with an optimizer each, that train in turns."""
    generator = mlp(Generator, 16, 128, 64)
    discriminator = mlp(Discriminator, 64, 128, 1)
    of_g = torch.optim.Adam(generator.parameters(), lr=1e-4)
    of_d = torch.optim.Adam(discriminator.parameters(), lr=1e-4)
    real = [torch.randn(32, 64) for _ in range(200)]
    clock.steps([generator, discriminator], of_g, of_d)
    loss = functional.binary_cross_entropy_with_logits

    def run() -> None:
        for batch in real:
            of_d.zero_grad()
            yes = discriminator(batch)
            no = discriminator(generator(torch.randn(32, 16)).detach())
            (loss(yes, torch.ones_like(yes)) + loss(no, torch.zeros_like(no))).backward()
            of_d.step()
            of_g.zero_grad()
            judged = discriminator(generator(torch.randn(32, 16)))
            loss(judged, torch.ones_like(judged)).backward()
            of_g.step()

    return Program(run, clock, {"models": [generator, discriminator], "optimizers": [of_g, of_d]})


def server(clock: Clock) -> Program:
    """Four threads that call one model at once."""
    model = UNet().eval()
    requests = [(torch.randn(1, 3, 32, 32), torch.ones(1, 1)) for _ in range(300)]
    clock.calls(model, lambda *_: Label("UNet"))

    def serve(request: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        with torch.inference_mode():
            return model(*request).mean()

    def run() -> list[torch.Tensor]:
        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(serve, requests))

    return Program(run, clock, {"model": model})


def handwritten(clock: Clock) -> Program:
    """A fit written by hand: a sanity check in eval mode, then training and validation."""
    model = mlp(nn.Sequential, 64, 256, 256, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    batches = [(torch.randn(32, 64), torch.randint(0, 10, (32,))) for _ in range(100)]
    clock.calls(model, lambda *_: Label("Sequential"))
    clock.steps([model], optimizer)

    def validate(batches: Iterable[Any]) -> float:
        model.eval()
        with torch.no_grad():
            found = [functional.cross_entropy(model(x), y).item() for x, y in batches]
        model.train()
        return sum(found)

    def run() -> list[float]:
        losses = [validate(batches[:2])]
        for _ in range(3):
            for inputs, targets in batches:
                optimizer.zero_grad()
                functional.cross_entropy(model(inputs), targets).backward()
                optimizer.step()
            losses.append(validate(batches[:20]))
        return losses

    return Program(run, clock, {"model": model, "optimizer": optimizer})


LOOPS: dict[str, Callable[[Clock], Program]] = {
    "loading": loading,
    "accumulation": accumulation,
    "diffusion": diffusion,
    "shapes": shapes,
    "gan": gan,
    "server": server,
    "fit": handwritten,
}
