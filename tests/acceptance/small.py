"""Small models, and the command line as a user calls it: what tests of promises have in common."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import xsp
from xsp.show.cli import app as cli


def network(width: int = 16, *extra: nn.Module) -> nn.Module:
    """Return a network of a few layers, in which a name tells every layer."""
    torch.manual_seed(0)
    layers = [nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 4), *extra]
    return nn.Sequential(*layers).eval()


def images(batch: int = 2) -> torch.Tensor:
    return torch.ones(batch, 8)


def measured(model: Any = None, **given: Any) -> xsp.Trace:
    """Measure a network in a few runs."""
    settings = {"levels": 2, "runs": 5, **given}
    with torch.inference_mode():
        return xsp.measure(network() if model is None else model, images(), **settings)


def command(
    folder: Path, *words: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `xsp` with some words in a folder, as in a terminal of 120 columns."""
    return subprocess.run(
        [sys.executable, "-m", "xsp", *words],
        cwd=folder,
        env={**os.environ, "COLUMNS": "120", **(environment or {})},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


def answer(
    folder: Path, *words: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Do the same in this process, for what only reads files: it starts no process."""
    said = [io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, value in {"COLUMNS": "120", **(environment or {})}.items():
            patch.setenv(name, value)
        patch.setattr(sys, "stdout", said[0])
        patch.setattr(sys, "stderr", said[1])
        code = cli.run(list(words))
    for each in said:
        each.seek(0)
    return subprocess.CompletedProcess(words, code, *(each.read() for each in said))
