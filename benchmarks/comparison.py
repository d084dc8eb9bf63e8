"""Measures how long `xsp compare` takes on two traces of many spans.

    python benchmarks/comparison.py [--spans 100000]

The traces are a transformer's of so many spans, once as it is and once with changes: layers that
were added, removed and replaced all over it, so that few siblings can be paired all at once. The
files are read, compared at the depth of operators, and printed, as the command does.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import samples

import xsp


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spans", type=int, default=100_000)
    spans = parser.parse_args().spans
    with tempfile.TemporaryDirectory() as folder:
        before, alike, changed = (Path(folder) / f"{name}.xsp" for name in ("a", "b", "c"))
        size = len(samples.trace(model(spans), name="a").save(before) and xsp.load(before))
        samples.trace(model(spans, slower=1.05), name="b").save(alike)
        samples.trace(model(spans, changes=0.05), name="c").save(changed)
        print(f"{size:,} spans, 3 times each, the quickest:")
        for name, after in (("alike", alike), ("changed in 5 % of all places", changed)):
            print(f"  {name}: {min(compared(before, after) for _ in range(3)):.2f} s")


def compared(before: Path, after: Path) -> float:
    """Return how long reading, comparing and printing takes, in s."""
    began = time.perf_counter()
    text = str(xsp.compare(xsp.load(before), xsp.load(after), kind="op", names=("a", "b")))
    assert "compared" in text
    return time.perf_counter() - began


def model(spans: int, *, slower: float = 1.0, changes: float = 0.0) -> samples.Node:
    """Return a model of blocks of 10 spans, some of them changed."""
    rolls = random.Random(1)
    blocks = [block(str(i), slower, rolls, changes) for i in range(spans // 10)]
    stages = [
        samples.layer(f"stage{i}", "Sequential", *blocks[i::30]) for i in range(min(30, spans))
    ]
    return samples.pipeline("predict", samples.layer("Net", "Net", *stages))


def block(name: str, slower: float, rolls: random.Random, changes: float) -> samples.Node:
    linear = samples.op("aten::linear", samples.op("aten::addmm", own_ns=int(90_000 * slower)))
    parts = [
        samples.layer("ln", "LayerNorm", samples.op("aten::layer_norm", own_ns=9_000)),
        samples.layer("fc", "Linear", linear, samples.op("aten::add", own_ns=2_000)),
        samples.layer("act", "GELU", samples.op("aten::gelu", own_ns=30_000)),
    ]
    if rolls.random() < changes:
        del parts[rolls.randrange(3)]
    if rolls.random() < changes:
        parts.insert(1, samples.layer("drop", "Dropout", samples.op("aten::dropout")))
    return samples.layer(name, "Block", *parts)


if __name__ == "__main__":
    main()
