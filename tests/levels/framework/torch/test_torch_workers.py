"""The wait for a batch tells what the workers of the `DataLoader` run meanwhile."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
import torch.distributed
from sampled import is_sampled, wait_for
from torch.utils.data import DataLoader, Dataset

import xsp

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: files in memory"),
    pytest.mark.forks,
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]
ENOUGH = 25  # samples: fewer than 20 have no row in the tree


def decode(number: int) -> torch.Tensor:
    wait_for(lambda: is_sampled("decode", ENOUGH))
    return torch.full((4,), float(number))


class Pictures(Dataset):  # type: ignore[misc,type-arg,unused-ignore]
    def __len__(self) -> int:
        return 4

    def __getitem__(self, number: int) -> torch.Tensor:
        return decode(number)


def functions(prof: xsp.profile, inside: str) -> str:
    """Return the functions of workers in waits for batches in a region."""
    spans = prof.trace.spans.unnest("attributes")
    around = spans.filter(name=inside)["path"].item()
    waits = spans.filter(pl.col("path").str.starts_with(around), pl.col("worker_samples") > 0)
    return " ".join(waits["worker_functions"].drop_nulls().explode().to_list())


@pytest.mark.parametrize("level", [1, 2])
def test_the_wait_for_a_batch_names_what_its_workers_run(level: int) -> None:
    with xsp.profile(levels=level, repeat=False) as prof:
        batches = list(DataLoader(Pictures(), batch_size=2, num_workers=2))
    assert [batch[:, 0].tolist() for batch in batches] == [[0, 1], [2, 3]]
    tree = prof.trace.tree()
    assert "worker: " in tree
    advice = xsp.analyses.advice(prof.trace).filter(rule="data loading")
    [evidence] = advice["evidence"]
    assert "a worker spends" in evidence
    assert "test_torch_workers.py" in tree + evidence


def test_workers_that_persist_and_a_second_loader_are_told_apart() -> None:
    with xsp.profile(levels=1, repeat=False) as prof:
        first = DataLoader(Pictures(), num_workers=1, persistent_workers=True)
        for _ in range(2):
            with xsp.span("train"):
                list(first)
        with xsp.span("test"):
            list(DataLoader(Pictures(), num_workers=1))
    assert functions(prof, "train")
    assert functions(prof, "test")


def test_workers_from_before_the_block_are_said_to_be_unseen() -> None:
    class Numbers(Pictures):
        def __getitem__(self, number: int) -> torch.Tensor:
            return torch.ones(1)

    loader = DataLoader(Numbers(), num_workers=1, persistent_workers=True)
    list(loader)
    with xsp.profile(levels=1, repeat=False) as prof:
        list(loader)
    assert "workers-unseen" in {warning.code for warning in prof.trace.warnings}


def rank(number: int, folder: Path, result: Any) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder / 'ranks'}", rank=number, world_size=2
    )
    ones = torch.ones(2) + decode(number)[:2]
    torch.distributed.all_reduce(ones)
    result.put(ones.tolist())
    torch.distributed.destroy_process_group()


def test_ranks_that_are_forked_compute_as_without_xsp(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    result = context.SimpleQueue()
    with xsp.profile(levels=1, repeat=False) as prof, xsp.span("ranks"):
        ranks = [context.Process(target=rank, args=(n, tmp_path, result)) for n in range(2)]
        for each in ranks:
            each.start()
        assert [result.get(), result.get()] == [[3.0, 3.0]] * 2
        for each in ranks:
            each.join()
    assert [each.exitcode for each in ranks] == [0, 0]
    assert "child process: " in prof.trace.tree()
    result.close()


def test_a_script_is_told_the_same(tmp_path: Path) -> None:
    script = tmp_path / "load.py"
    script.write_text(
        "from test_torch_workers import DataLoader, Pictures\n"
        "print(len(list(DataLoader(Pictures(), num_workers=1))))\n"
    )
    here = os.path.dirname(__file__)
    tests = str(Path(here).parents[2])
    ran = subprocess.run(
        [sys.executable, "-m", "xsp", "profile", "--levels", "1", str(script)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, here, tests])},
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ran.stdout.startswith("4\n")
    assert "worker: " in ran.stdout + ran.stderr
