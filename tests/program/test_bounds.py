"""A process stays as large as it is, however many blocks it has and however long one lasts."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

# In a process of its own: what other tests left in memory would be used again first.
_PROGRAM = """
import gc, json, os, sys
import psutil, torch, xsp
from xsp.record.program import recorder

torch.set_num_threads(1)
model, x = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(2))).eval(), torch.ones(1, 4)
settings = {"levels": 2, "repeat": False, "progress": False}

def resident():
    gc.collect()
    return psutil.Process().memory_info().rss

def block(count, sizes=None, **more):
    with xsp.profile(**settings, **more) as prof:
        for step in range(count):
            model(x)
            if sizes is not None and (step + 1) % (count // 10) == 0:
                sizes.append(resident())
    return prof

with torch.inference_mode():
    blocks, steps = [], []
    for number in range(100):
        block(5).trace
        if number % 10 == 9:
            blocks.append(resident())
    gc.collect()
    objects = len(gc.get_objects())
    for number in range(10):
        block(5).trace
    gc.collect()
    more = len(gc.get_objects()) - objects
    block(20_000, steps, budget=None).trace
    # A log that is full is read all the same, and no call more is in it.
    recorder.MOST_ENTRIES = 10_000
    full = block(5_000, budget=None)
    entries = full._recorder.log.size()
    counted = full.trace.metadata["groups"][0]["calls"]
print(json.dumps([blocks, steps, more, entries, counted]))
"""


@pytest.mark.slow
def test_memory_levels_off_over_blocks_and_over_steps() -> None:
    found = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True, timeout=120
    )
    result: Any = json.loads(found.stdout.splitlines()[-1])
    blocks, steps, objects, entries, counted = result
    mib = 1 << 20
    assert max(blocks) - blocks[0] < 20 * mib  # 90 blocks
    # 18,000 steps leave 3 MiB in the log; a window of operators takes some 50 MiB once.
    assert max(steps) - steps[0] < 100 * mib
    assert objects < 200  # of ten blocks, whose traces are dead
    assert 10_000 < entries < 40_000  # a window is recorded to its end
    assert counted > 0
