"""Two measurements of the same thing come out as equal: simulated ones, and real ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import xsp

# Dozens of measurements run the same lines, which others cover: coverage has enough of them.
pytestmark = pytest.mark.no_cover

MODEL = """
import sys, torch, xsp
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8)))
x = torch.randn(64, 256)
with torch.inference_mode():
    xsp.measure(model, x, levels=2, budget=3).save(sys.argv[1])
"""


@pytest.mark.timing
def test_real_measurements_of_one_model_in_two_processes_are_equal(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
    files = [tmp_path / f"{number}.xsp" for number in range(4)]
    for file in files:
        subprocess.run([sys.executable, "-c", MODEL, str(file)], check=True, timeout=120)
    traces = [xsp.load(file) for file in files]
    found = [xsp.compare(*traces[at : at + 2]) for at in range(0, len(files), 2)]
    called = [each.summary["verdict"][0] not in ("not significant", "unknown") for each in found]
    # Intervals cannot know of what a machine does in the minute after; so one pair may differ.
    assert sum(called) <= 1, [str(each) for each in found]
