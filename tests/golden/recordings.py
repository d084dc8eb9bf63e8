"""Recordings whose traces have a golden content: files of other tools, of xsp, and simulations."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, product
from pathlib import Path

from simulator.cost import COSTS, cost_of
from simulator.machine import Machine, SimulatedProvider
from simulator.mood import MOODS
from simulator.tree import random_tree

import xsp
from xsp.measuring.call.callable import interpret_session
from xsp.measuring.call.repeat import carry_out
from xsp.provider import ModelCall
from xsp.reading.runs.build import build_trace
from xsp.record.session import Plan, Session, select
from xsp.record.session.settings import settings_of
from xsp.testing import only_providers, replay

TESTS = Path(__file__).parents[1]
DATA = TESTS / "data"
TRACES = Path(os.environ.get("XSP_TRACES", TESTS.parents[1] / "shared" / "traces"))
EXPECTED = Path(__file__).parent / "expected"
SIMULATIONS = 30


@dataclass(frozen=True)
class Recorded:
    """A recording.

    Attributes:
        name: Name of the file that keeps the content.
        trace: Makes the trace.
        files: What the trace is made of, beside code.
    """

    name: str
    trace: Callable[[], xsp.Trace]
    files: tuple[Path, ...] = ()


# Other tools' recordings, which the repository is too small for: as in the folder of the traces.
FOREIGN = (
    "kineto/a100-queue.json.gz",
    "kineto/a100-triton.json.gz",
    "kineto/b200-eager.json.gz",
    "kineto/counters.json.gz",
    "kineto/critical-path-alexnet.json.gz",
    "kineto/critical-path-cuda-event-sync-multi-stream.json.gz",
    "kineto/critical-path-cuda-event-sync.json.gz",
    "kineto/critical-path-simple-add.json.gz",
    "kineto/h100-bert-small.json.gz",
    "kineto/h100-vit.json.gz",
    "kineto/mi210-gpu-only.json.gz",
    "kineto/mi300-compiled.json.gz",
    "kineto/mi300-resnet-training.json.gz",
    "kineto/mi300-vllm-decode-graph.json.gz",
    "kineto/rank0.json.gz kineto/rank1.json.gz",
    "kineto/v100-resnet50-training-2021.json.gz",
    "ncu/t4-copy.csv",
    "nsys/rtx3060-graph.sqlite",
    "nsys/t4-cupy.sqlite",
    "rocm/gfx950-rocprofv3.json.gz",
    "rocm/pytorch.rpd.gz",
    "xplane/mi300-jax-conv.xplane.pb",
    "xplane/nvidia-tf-2workers.xplane.pb",
)
STEADY = ("calm 1 %", "spikes", "drift 3 s", "level 0.3 s", "jumps 0.3 s")


def recordings() -> list[Recorded]:
    """Return all recordings, those of other tools whether or not they are here."""
    return [*_own(), *_foreign(), *_simulations()]


def _own() -> Iterator[Recorded]:
    for folder in ("onnxruntime", "tensorflow"):
        for path in sorted((DATA / folder).iterdir()):
            yield Recorded(f"{folder}-{_stem(path)}", partial(xsp.read, path), (path,))
    for path in sorted((DATA / "cupti").glob("*.xsprec")):
        yield Recorded(f"recorded-{path.stem}", partial(replay, path), (path,))


def _foreign() -> Iterator[Recorded]:
    for names in FOREIGN:
        files = tuple(TRACES / name for name in names.split())
        name = "-".join([files[0].parent.name, *map(_stem, files)])
        yield Recorded(name, partial(xsp.read, *files), files)


def _simulations() -> Iterator[Recorded]:
    for seed, (mood, costs) in enumerate(islice(product(STEADY, COSTS), SIMULATIONS)):
        words = re.findall("[a-z0-9]+", f"{costs} {mood}")
        name = "-".join(["simulated", f"{seed:02}", *words])
        yield Recorded(name, partial(simulated, seed, costs, mood))


def _stem(path: Path) -> str:
    return path.name.partition(".")[0]


def simulated(seed: int, costs: str, mood: str) -> xsp.Trace:
    """Measure a random tree on a simulated machine, as `xsp.measure` does on this one."""
    tree = random_tree(20 + 5 * seed, 0.2e6 * (1 + seed), seed)
    machine = Machine(tree, cost_of(tree, costs), MOODS[mood], seed)
    settings = settings_of(2, runs=5 + seed % 4)
    with only_providers(SimulatedProvider(machine)):
        selection = select(settings.levels)
        session = Session(selection.providers, machine.clock)
        call = ModelCall(machine.evaluate, subject=f"model {seed}")
        carry_out(Plan(selection.passes, settings), session, call, lambda _: None)
        made = interpret_session(session, selection, call.subject)
    # Page faults, and what disturbs, are those of the machine that simulates.
    runs = tuple(replace(run, page_faults=None) for run in made.runs)
    warnings = tuple(each for each in made.warnings if each.code == "provider-failed")
    facts = {"host": "simulated", "host_id": "simulated"}
    return build_trace([replace(made, runs=runs, warnings=warnings, environment=facts)], settings)
