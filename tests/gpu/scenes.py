"""Small real models on a GPU, as functions: for the tests beside this file, and to be recorded.

`xsp record tests/gpu/scenes.py:graphed --levels 4` keeps the records of one; scripts/gpu
does so for all. What is made once is made by the first call.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # whose threads would stay behind

import torch
from torch import nn
from torchvision.models import resnet18

KERNELS = 50_000  # of `many`


class Attention(nn.Module):  # type: ignore[misc]
    """A transformer's block with the framework's own attention."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(self.norm(x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (8, -1)).transpose(1, 2) for part in parts)
        attended = nn.functional.scaled_dot_product_attention(query, key, value)
        x = x + self.project(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


@cache
def _transformer() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(*(Attention() for _ in range(4))).cuda().eval()
    return model, torch.randn(8, 64, 256, device="cuda")


@cache
def _image_model() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return resnet18(weights=None).cuda().eval(), torch.randn(8, 3, 224, 224, device="cuda")


def convolutions() -> torch.Tensor:
    """ResNet-18, eager."""
    model, images = _image_model()
    with torch.inference_mode():
        return model(images)


def attention() -> torch.Tensor:
    """Four transformer blocks, eager."""
    model, tokens = _transformer()
    with torch.inference_mode():
        return model(tokens)


@cache
def _compiled() -> Any:
    return torch.compile(_transformer()[0])


def compiled() -> torch.Tensor:
    """The same blocks, compiled by Inductor."""
    with torch.inference_mode():
        result: torch.Tensor = _compiled()(_transformer()[1])
    return result


@cache
def _graph() -> torch.cuda.CUDAGraph:
    model, tokens = _transformer()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.inference_mode(), torch.cuda.stream(side):
        for _ in range(3):
            model(tokens)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(graph):
        model(tokens)
    return graph


def graphed() -> None:
    """The same blocks, replayed from a CUDA graph, which the first call captures."""
    _graph().replay()


@cache
def _reduced() -> Any:
    return torch.compile(_transformer()[0], mode="reduce-overhead")


def reduced() -> torch.Tensor:
    """The same blocks, compiled, and captured by PyTorch in one of the first calls."""
    torch.compiler.cudagraph_mark_step_begin()
    with torch.inference_mode():
        result: torch.Tensor = _reduced()(_transformer()[1])
    return result


def forget() -> None:
    """Have the next calls of `graphed` and `reduced` capture their graphs anew."""
    _graph.cache_clear()
    _reduced.cache_clear()
    torch.compiler.reset()


@cache
def _streams() -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    return torch.cuda.Stream(), torch.cuda.Stream()


def two_streams() -> None:
    """The same blocks on two streams at once."""
    model, tokens = _transformer()
    for stream in _streams():
        stream.wait_stream(torch.cuda.current_stream())
        with torch.inference_mode(), torch.cuda.stream(stream):
            model(tokens)
    for stream in _streams():
        torch.cuda.current_stream().wait_stream(stream)


@cache
def _training() -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(*(Attention() for _ in range(4))).cuda()
    return model, torch.optim.SGD(model.parameters(), 0.01), _transformer()[1]


def training() -> None:
    """One training step of such blocks."""
    model, optimizer, tokens = _training()
    optimizer.zero_grad()
    model(tokens).square().mean().backward()
    optimizer.step()


def many() -> None:
    """Fifty thousand kernels, and nothing else."""
    x = torch.zeros(16, device="cuda")
    for _ in range(KERNELS):
        x.add_(1.0)


SCENES = (convolutions, attention, compiled, graphed, reduced, two_streams, training)
