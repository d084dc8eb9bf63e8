"""Two real ranks: one trace of both, and parameters that are to the last bit as without xsp."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import xsp
from xsp.analyses import communication, rank_imbalance

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
nn = torch.nn
pytestmark = pytest.mark.slow

SCRIPT = """
import sys, time, torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.set_num_threads(1)
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.Generator().manual_seed(rank)
for step in range(int(sys.argv[1])):
    x, y = torch.randn(8, 16, generator=data), torch.randint(0, 4, (8,), generator=data)
    if rank:
        time.sleep(0.01)
    if step == 40 and sys.argv[2:] == ["raise", str(rank)]:
        raise OSError(f"of rank {rank}")
    if step == 40 and sys.argv[2:] == ["exit", str(rank)]:
        sys.exit(3)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
digest = [p.double().sum().item().hex() for p in model.parameters()]
sys.stdout.write(f"<{rank} {digest}>\\n")
dist.destroy_process_group()
"""

ALONE = """
import torch
net = torch.nn.Linear(4, 4).eval()
with torch.no_grad():
    for _ in range(60):
        net(torch.zeros(1, 4))
"""


PREDICT = """
import torch
import torch.distributed as dist
import xsp
from torch import nn


class Summed(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        y = self.linear(x)
        dist.all_reduce(y)
        return y


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.set_num_threads(1)
model = Summed().eval()
with xsp.profile(levels=2, progress=False) as prof, torch.no_grad():
    for _ in range(120):
        model(torch.ones(4, 16))
prof.trace.save(f"rank{rank}.xsp")
dist.destroy_process_group()
"""


def trained_by_one_process(steps: int) -> list[str]:
    """Return a digest of the parameters that two ranks train by averaging their gradients."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    generators = [torch.Generator().manual_seed(rank) for rank in range(2)]
    for _ in range(steps):
        optimizer.zero_grad()
        for data in generators:
            x, y = torch.randn(8, 16, generator=data), torch.randint(0, 4, (8,), generator=data)
            (nn.functional.cross_entropy(net(x), y) / 2).backward()  # exact in binary
        optimizer.step()
    return [p.double().sum().item().hex() for p in net.parameters()]


def torchrun(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(SCRIPT, encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return subprocess.run(
        [*command, *arguments],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_two_ranks_are_one_trace_and_train_as_without_xsp(tmp_path: Path) -> None:
    ran = torchrun(tmp_path, "-m", "xsp", "profile", "--levels", "2", "train.py", "110")
    assert ran.returncode == 0, ran.stderr
    digest = trained_by_one_process(110)
    told = sorted(re.findall(r"<.*?>", ran.stdout))
    assert told == [f"<{rank} {digest}>" for rank in range(2)]
    assert ran.stderr.count("saved to train.xsp") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py", "train.xsp"]
    trace = xsp.load(tmp_path / "train.xsp")
    trace.check()
    assert trace.root.name == "distributed program of 2 ranks"
    assert [each["clock"] for each in trace.metadata["ranks"]] == ["same machine"] * 2
    codes = {warning.code for warning in trace.warnings}
    assert not codes & {"rank-alone", "rank-missing", "orphans"}, trace.warnings
    # Rank 1 sleeps before each step, and the other one waits for it.
    first, second = rank_imbalance(trace).iter_rows(named=True)
    assert first["collectives"] == second["collectives"] > 0
    assert second["last"] > first["last"]
    assert first["waiting_ns"] > second["waiting_ns"]
    assert set(communication(trace)["collective"]) >= {"allreduce"}


@pytest.mark.parametrize(
    ("how", "rank", "told"),
    [("raise", 1, "OSError"), ("exit", 0, "exit code 3")],
)
def test_a_rank_that_fails_leaves_a_trace_of_what_there_was(
    tmp_path: Path, how: str, rank: int, told: str
) -> None:
    command = ("-m", "xsp", "profile", "--levels", "2", "train.py", "300", how, str(rank))
    ran = torchrun(tmp_path, *command)
    assert ran.returncode == 1
    assert (f"OSError: of rank {rank}" in ran.stderr) == (how == "raise")
    trace = xsp.load(tmp_path / "train.xsp")
    names = trace.spans.filter(parent_id=trace.root.span_id)["name"].to_list()
    # Rank 1 waits in a collective until rank 0 ends, for DistributedDataParallel keeps its sockets.
    assert names[: 2 if rank else 1] == ["rank 0", "rank 1"][: 2 if rank else 1], ran.stderr
    failed = [warning.message for warning in trace.warnings if warning.code == "rank-failed"]
    assert any(f"rank {rank} ended by {told}" in message for message in failed), failed


def test_ranks_that_only_predict_record_operators_in_blocks_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "predict.py").write_text(PREDICT, encoding="utf-8")
    ran = torchrun(tmp_path, "predict.py")
    assert ran.returncode == 0, ran.stderr
    recorded: list[Any] = []
    for rank in range(2):
        trace = xsp.load(tmp_path / f"rank{rank}.xsp")
        trace.check()
        assert "rank-alone" in {warning.code for warning in trace.warnings}
        [group] = trace.metadata["groups"]
        assert group["calls"] == 120
        operators = trace.spans.filter(kind="op")
        assert "c10d::allreduce_" in operators["name"].to_list()
        recorded.append(operators["runs"].max())
    assert recorded[0] == recorded[1] > 1  # both ranks drew the same windows


def test_a_rank_that_finds_no_other_measures_by_itself(tmp_path: Path) -> None:
    (tmp_path / "predict.py").write_text(ALONE, encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-m", "xsp", "profile", "--levels", "2", "predict.py"],
        cwd=tmp_path,
        env=os.environ | {"RANK": "1", "WORLD_SIZE": "2"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "rank 1 is measured by itself" in ran.stderr
    trace = xsp.load(tmp_path / "predict-rank1.xsp")
    [linear] = trace.spans.filter(name="Linear 1×4")["runs"].to_list()
    assert linear > 1
