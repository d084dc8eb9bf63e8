"""Programs that run under a tool, and make a few steps when they are told to.

`overhead_table.py` starts this file as a process, plain or under a tool. A process reads commands
from one named pipe and writes answers to another, as lines of JSON: some tools start the program
anew, which closes what it inherited.

                        -> the number of the process, when the program is ready
    start               -> when the tool is on in the process
    {"steps": 8}        -> the CPU and wall time of 8 steps, after one that does not count
    stop                -> when the tool's file is closed: memory, and numbers of calls of layers

A program times two kinds of its own layers by two clock reads, at every seventh call of each.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from time import perf_counter_ns, process_time_ns
from typing import Any

from tool_clock import CLOCK

Step = Callable[[], object]
Visit = Callable[[], AbstractContextManager[Any]]


def transformer() -> Step:
    """Make the step of a small transformer: inference of six blocks at batch 1."""
    import torch
    from tool_models import Transformer

    model, tokens = Transformer().eval(), torch.randn(1, 16, 64)

    def step() -> object:
        with torch.inference_mode():
            return model(tokens)

    for _ in range(3):
        step()
    return step


def convolution() -> Step:
    """Make the training step of a small convolutional network, with one batch for all."""
    from tool_models import Convolutional, batch, trained

    train, (images, labels) = trained(Convolutional()), batch()
    return lambda: train(images, labels)


def loader() -> Step:
    """Make the training step of the same network, with batches that two processes make."""
    from tool_models import Convolutional, endless_batches, trained

    train, batches = trained(Convolutional()), endless_batches(workers=2)
    return lambda: train(*next(batches))


# The second number: steps of one turn.
PROGRAMS: dict[str, tuple[Callable[[], Step], int]] = {
    "transformer": (transformer, 8),
    "convolution": (convolution, 4),
    "loader": (loader, 4),
}


def serve(step: Step, commands: Iterator[Any], answer: Callable[[Any], None], visit: Visit) -> None:
    """Make steps as the commands say, until the command to stop."""
    for command in commands:
        if command == "stop":
            return
        CLOCK.readings.clear()
        with visit():
            step()
            wall_ns, cpu_ns = perf_counter_ns(), process_time_ns()
            for _ in range(command["steps"]):
                step()
            cpu_ns = process_time_ns() - cpu_ns
            wall_ns = perf_counter_ns() - wall_ns
        answer({"cpu_ns": cpu_ns, "wall_ns": wall_ns, "layers": CLOCK.readings})
    raise SystemExit("The pipe of commands closed before the command to stop.")


def run(
    step: Step,
    pipes: Path,
    begin: Callable[[], AbstractContextManager[Any]] = nullcontext,
    end: Callable[[Any], None] = lambda active: None,
) -> None:
    """Serve one process of a pair.

    Args:
        step: Makes one step.
        pipes: Folder with the named pipes `commands` and `answers`.
        begin: Makes the context in which the tool is on. If what it gives has a method `visit`,
            that makes a context around the steps of each turn.
        end: Takes what the context gave, and writes the tool's file.
    """
    with (
        (pipes / "commands").open(encoding="utf-8") as commands,
        (pipes / "answers").open("w", encoding="utf-8") as answers,
    ):

        def answer(value: Any) -> None:
            answers.write(json.dumps(value) + "\n")
            answers.flush()

        lines = map(json.loads, commands)
        answer({"process": os.getpid()})
        next(lines)  # the command to start
        with begin() as active:
            answer("started")
            CLOCK.calls.clear()
            serve(step, lines, answer, getattr(active, "visit", nullcontext))
        end(active)
        answer({"peak_bytes": peak_bytes(), "calls": CLOCK.calls})


def peak_bytes() -> int:
    """Read the most memory that the process held, in bytes.

    `getrusage` would count what the process that started this one held before.
    """
    status = Path("/proc/self/status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


def set_threads() -> None:
    """Let PyTorch compute on one thread: more would disturb the other process of the pair."""
    import torch

    torch.set_num_threads(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("pipes", type=Path)
    parser.add_argument("--tool", help="what is switched on inside the process")
    parser.add_argument("--folder", type=Path, help="where the tool writes its file")
    given = parser.parse_args()
    make, _ = PROGRAMS[given.program]
    set_threads()
    step = make()
    if given.tool is None:
        run(step, given.pipes)
    else:
        from tools import TOOLS

        tool = TOOLS[given.tool]
        run(
            step,
            given.pipes,
            lambda: tool.begin(given.folder),
            lambda active: tool.end(active, given.folder),
        )


if __name__ == "__main__":
    main()
