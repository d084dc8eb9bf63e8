"""Measures a user's waits: imports, loading, steps, and the bookkeeping after them.

Run it as `python benchmarks/waiting.py`. Times are wall times, with the processor's time of all
processes besides: on a machine that is not quiet the latter says more.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from table import print_header, print_row
from torch import nn

from xsp.measuring.call import interpret_session, visit_all
from xsp.measuring.target import Spec, measure_isolated
from xsp.reading.runs import build_trace
from xsp.record.session import Settings, settings_of

GENERATE = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel
model = GPT2LMHeadModel(GPT2Config()).eval()
ids = torch.randint(0, 50000, (1, 16))
def run():
    with torch.inference_mode():
        return model.generate(ids, max_new_tokens=20, do_sample=False, pad_token_id=0)
"""

WIDTHS = (44, 9, 9, 9, 9, 9, 9)
COMMANDS = ("what", "loading", "measuring", "after", "printing", "in all", "processor")
MEASURES = ("xsp.measure", "visits", "measuring", "interpr.", "merging", "printing", "processor")


def processor_s() -> float:
    """Return the time of the processor that this process and its children took so far."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


@dataclass(slots=True)
class Marks:
    """Moments, and the processor's time from the first to the last."""

    at: list[float] = field(default_factory=lambda: [perf_counter()])
    began_s: float = field(default_factory=processor_s)

    def note(self) -> None:
        """Note this moment."""
        self.at.append(perf_counter())

    def cells(self) -> list[str]:
        """Return the times between the moments, as text."""
        return [f"{end - begin:.2f} s" for begin, end in zip(self.at, self.at[1:], strict=False)]

    def processor(self) -> str:
        """Return the processor's time since the first moment, as text."""
        return f"{processor_s() - self.began_s:.1f} s"


def imports(code: str) -> None:
    """Print how long it takes to import, alone."""
    marks = Marks()
    subprocess.run([sys.executable, "-c", code], check=True)
    marks.note()
    print_row((code, *marks.cells(), "", "", "", *marks.cells(), marks.processor()), WIDTHS)


def entered(folder: str, *arguments: str) -> None:
    """Print how long it takes from Enter until `xsp profile` prints its tree."""
    marks = Marks()
    command = [sys.executable, "-m", "xsp", "profile", *arguments, "-o", f"{folder}/out.xsp"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=folder
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        marks.note()
        process.stdout.read()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with exit code {process.returncode}")
    title = f"xsp profile {' '.join(arguments)}"
    print_row((title, "", "", "", "", *marks.cells(), marks.processor()), WIDTHS)


def phases(title: str, spec: Spec, settings: Settings) -> None:
    """Print what such a command takes from its first process to its tree, step by step."""
    marks, told = Marks(), list[float]()

    def progress(fraction: float) -> None:
        if fraction and not told:
            marks.note()  # the first process has loaded the target and made a first visit
        if fraction >= 1 and (not told or told[-1] < 1):
            marks.note()
        told.append(fraction)

    with ExitStack() as ending:
        trace = measure_isolated(spec, settings, progress, ending=ending)
        marks.note()
        str(trace)
        marks.note()
    whole = f"{marks.at[-1] - marks.at[0]:.1f} s"
    print_row((title, *marks.cells(), whole, marks.processor()), WIDTHS)


def lstm() -> nn.Module:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(64, 64, 2, batch_first=True)
            self.last = nn.Linear(64, 10)

        def forward(self, x: torch.Tensor) -> Any:
            return self.last(self.lstm(x)[0][:, -1])

    return Recurrent()


def resnet18() -> nn.Module:
    import torchvision  # noqa: PLC0415

    return torchvision.models.resnet18()


MODELS: dict[str, tuple[Callable[[], nn.Module], Sequence[int]]] = {
    "Linear": (lambda: nn.Linear(64, 64), (8, 64)),
    "MLP": (lambda: nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)), (8, 64)),
    "LSTM": (lstm, (8, 20, 64)),
    "ResNet-18": (resnet18, (1, 3, 224, 224)),
}


def in_process(name: str, levels: int, budget: float | None) -> None:
    """Print what `xsp.measure` takes, step by step."""
    make, shape = MODELS[name]
    model, x, settings = make().eval(), torch.randn(*shape), settings_of(levels, budget=budget)
    with torch.inference_mode():
        model(x)
        marks = Marks()
        visited = visit_all(model, (x,), settings=settings)
        marks.note()
        runs = interpret_session(*visited)
        marks.note()
        trace = build_trace([runs], settings)
        marks.note()
        str(trace)
        marks.note()
    title = f"{name}, levels={levels}, budget={budget or 'default'}"
    visits = f"{len(visited[0].visits):,}"
    print_row((title, visits, *marks.cells(), marks.processor()), WIDTHS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the two commands alone")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    print_header("What a user waits for")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # what pip installs is compiled
    print_row(COMMANDS, WIDTHS)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "gen.py").write_text(GENERATE)
        imports("import torch, torchvision")
        entered(folder, "torchvision:resnet18", "--levels", "2")
        phases("  its steps", Spec("torchvision:resnet18"), settings_of(2, budget=5))
        imports("from transformers import GPT2LMHeadModel")
        entered(folder, "gen.py:run", "--levels", "3", "--budget", "5")
        phases("  its steps", Spec(f"{folder}/gen.py:run"), settings_of(3, budget=5))
    if quick:
        return
    in_process("Linear", 2, 0.1)  # first uses, which take longer
    print()
    print_row(MEASURES, WIDTHS)
    for name in MODELS:
        for levels in (2, 3):
            for budget in (1, 3):
                in_process(name, levels, budget)
        in_process(name, 2, None)


if __name__ == "__main__":
    main()
