"""How much slower is GPT-2 on a GPU while its kernels are recorded? Beside torch.profiler.

Inference and a training step, bare, with every level of xsp armed (which is what its
kernel pass does), and with torch.profiler watching CPU and GPU, in turns. torch.profiler has a
process of its own, for CUPTI serves one of the two in a process; what it adds is what it adds to
the bare one there.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from multiprocessing import get_context
from typing import Any

import torch
from table import percent, print_header, print_row
from torch.profiler import ProfilerActivity, profile
from transformers import GPT2Config, GPT2LMHeadModel
from turns import settle, statistic, take_turns, time_bare

from xsp.level import Kind
from xsp.matching.run import Pass, ladder
from xsp.provider.watching import ModelCall
from xsp.record.session import registry
from xsp.record.session.recorder import Session
from xsp.record.session.visit import PlannedVisit
from xsp_levels.native.stderr_filter import vendor_silenced

TOKENS = 256
EVALUATIONS = 5  # each time a way of profiling has its turn
COLUMNS = (
    ("GPT-2", 10),
    ("batch", 5),
    ("bare ms", 9),
    ("xsp, operators", 14),
    ("xsp, kernels", 12),
    ("torch.profiler", 14),
    ("ratio", 5),
)
HEADINGS, WIDTHS = zip(*COLUMNS, strict=True)
LEGEND = """
xsp, operators   time that its pass down to operators adds, as a share of a step
xsp, kernels     the same of the pass down to kernels: layers, operators, library calls, CUPTI
torch.profiler   CPU and CUDA activity
ratio            what xsp's kernel pass adds, to what torch.profiler adds"""

Work = Callable[[], Any]


def works(batch: int) -> dict[str, Work]:
    """Make the functions to call, by name; each waits for the device at its end."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config()).cuda()
    tokens = torch.randint(0, model.config.vocab_size, (batch, TOKENS), device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def inference() -> None:
        model.eval()
        with torch.inference_mode():
            model(tokens)
        torch.cuda.synchronize()

    def training() -> None:
        model.train()
        optimizer.zero_grad()
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
        torch.cuda.synchronize()

    return {"inference": inference, "training": training}


def ways(work: Work) -> dict[str, Callable[[], list[float]]]:
    """Return each way of profiling: a function that evaluates some times and times it."""
    kinds = frozenset(Kind) - {Kind.SYSCALL}
    session = Session(registry.installed_providers(), kinds=kinds)
    passes = {pass_.name: pass_ for pass_ in ladder(kinds)}
    missing = {"bare", "op", "kernel"} - set(passes)
    if missing:
        raise SystemExit(f"there is no pass {', '.join(sorted(missing))} among {', '.join(passes)}")

    def on(pass_: Pass) -> Callable[[], list[float]]:
        def visit() -> list[float]:
            session.visits.clear()
            call = ModelCall(work, whole_model=False)
            planned = PlannedVisit(pass_, EVALUATIONS, untimed=1)
            return [float(each) for each in session.visit(planned, call)]

        return visit

    return {name: on(passes[name]) for name in ("bare", "op", "kernel")}


@cache
def _alone(batch: int) -> dict[str, Work]:
    return works(batch)


def torch_profiler(name: str, batch: int) -> tuple[list[float], list[float]]:
    """Return latencies bare, and with torch.profiler, in the process that calls this."""
    work = _alone(batch)[name]
    settle(work)
    bare = time_bare(work, EVALUATIONS)
    with (
        vendor_silenced(),
        profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]),
    ):
        work()
        return bare, time_bare(work, EVALUATIONS)


def _add(found: list[float], submit: Callable[[], Any]) -> list[float]:
    """Have the other process take its turn, and note what its profiler adds."""
    bare, profiled = submit().result()
    found.append(statistic(profiled) / statistic(bare) - 1)
    return bare


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--rounds", type=int, default=20)
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this needs an NVIDIA GPU and a PyTorch built for CUDA")
    print_header(f"Time that profiling adds on {torch.cuda.get_device_name()}")
    print_row(HEADINGS, WIDTHS)
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        for batch in chosen.batch:
            for name, work in works(batch).items():
                theirs: list[float] = []
                other = partial(_add, theirs, partial(process.submit, torch_profiler, name, batch))
                added = take_turns(ways(work) | {"torch": other}, chosen.rounds)
                bare = added["bare"]
                shares = [added[way] / bare for way in ("op", "kernel")] + [statistic(theirs[1:])]
                ratio = f"{shares[1] / shares[2]:.2f}"
                figures = [f"{bare / 1e6:.3f}", *map(percent, shares), ratio]
                print_row([name, str(batch), *figures], WIDTHS)
    print(LEGEND)


if __name__ == "__main__":
    main()
