"""Exactness of distributed programs: a step in the trace against plain readings of a clock.

Two gloo ranks run a loop plainly and under `xsp profile`, in turns:

    python benchmarks/ranks.py ddp            # training with DistributedDataParallel
    python benchmarks/ranks.py reduce         # a layer cut in two, whose halves are summed up
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import xsp

STEPS = {"ddp": 300, "reduce": 400}
TURNS = 2

PROGRAM = """
import statistics, sys, time, torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)

class Half(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width // 2)
        self.outer = nn.Linear(width // 2, width)

    def forward(self, x):
        y = self.outer(torch.relu(self.inner(x)))
        dist.all_reduce(y)
        return y

kind, steps = sys.argv[1], int(sys.argv[2])
net = nn.Sequential(*[Half(512) for _ in range(4)])
if kind == "ddp":
    net = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(),
                        nn.Linear(1024, 10))
    net = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
x, y = torch.randn(32, 512), torch.randint(0, 10, (32,))

def step():
    if kind == "reduce":
        with torch.no_grad():
            net(x)
        return
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(x), y).backward()
    optimizer.step()

took = []
for _ in range(steps):
    began = time.perf_counter_ns()
    step()
    took.append(time.perf_counter_ns() - began)
kept = sorted(took[steps // 10:])
cut = len(kept) // 5
if dist.get_rank() == 0:
    print("step", statistics.mean(kept[cut:-cut]))
dist.destroy_process_group()
"""


def torchrun(folder: Path, *command: str) -> str:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    ran = subprocess.run(
        [*launcher, *command],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout


def main() -> None:
    kind = sys.argv[1]
    script = ("program.py", kind, str(STEPS[kind]))
    plain, profiled = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "program.py").write_text(PROGRAM, encoding="utf-8")
        for _ in range(TURNS):
            plain.append(float(torchrun(folder, *script).split()[1]))
            torchrun(folder, "-m", "xsp", "profile", "--levels", "2", *script)
            trace = xsp.load(folder / "program.xsp")
            profiled.append(trace.metadata["groups"][0]["latency_ns"])
            warnings = sorted({each.code for each in trace.warnings})
            print(f"{plain[-1] / 1e3:.0f} µs, {profiled[-1] / 1e3:.0f} µs {warnings}", flush=True)
    print(f"{kind}: plainly   {[round(each / 1e3) for each in plain]} µs")
    print(f"{kind}: in traces {[round(each / 1e3) for each in profiled]} µs")
    print(f"{kind}: medians differ by {100 * (median(profiled) / median(plain) - 1):+.1f} %")


if __name__ == "__main__":
    main()
