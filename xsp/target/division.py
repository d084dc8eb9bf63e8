"""Division: a measurement in, the jobs of its processes out, with rungs and budget divided.

levels=2    pipeline, layer    op, detail    pipeline, layer
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from xsp.level import Level
from xsp.measurement import rung_names
from xsp.session import Settings
from xsp.target.spec import Spec
from xsp.target.worker import Job

_FEWEST_PROCESSES = 3  # with fewer, Student's factor makes any difference between them an abyss
_TOGETHER = (
    "pipeline",
    "layer",
)  # rungs recorded by the same few instructions, which share a process
_FEWEST_ROUNDS = 3  # by fewer the processes could not be compared
_DETAIL_WEIGHT = 0.25  # part of a rung's budget for detail runs, which are made once
_SERIALISED_WEIGHT = 4.0  # a whole ladder, but of latencies that need less precision


def divide(spec: Spec, settings: Settings, *, serialised: bool) -> list[Job]:
    """Return the job of each process, the budget divided among these and a serialised one."""
    processes = _rungs_of_processes(rung_names(settings))
    weights = [_weight(rungs) for rungs in processes]
    whole = sum(weights) + serialised * _SERIALISED_WEIGHT
    jobs = [
        Job(spec, replace(settings, budget_s=settings.budget_s * weight / whole), rungs)
        for rungs, weight in zip(processes, weights, strict=True)
    ]
    if _may_be_alone(spec, settings):
        part = sum(weights) / whole
        # The trial calls have warmed up what they can.
        alone = replace(settings, budget_s=settings.budget_s * part, warmup=0)
        jobs[0] = replace(jobs[0], alone=alone)
    return jobs


def _rungs_of_processes(rungs: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the rungs of each process: all rungs once, of a short ladder the first more often.

    Processes of one program differ in speed, and only several processes tell by how much.

    >>> _rungs_of_processes(["pipeline", "layer", "op", "detail"])
    [('pipeline', 'layer'), ('op', 'detail'), ('pipeline', 'layer')]
    """
    first = tuple(rung for rung in rungs if rung in _TOGETHER)
    timed = [rung for rung in rungs if rung not in (*_TOGETHER, "detail")]
    found = [first] * bool(first) + [(rung,) for rung in timed]
    if "detail" in rungs:  # made once, after all other visits: there it disturbs none
        found[-1] += ("detail",)
    return [*found, *found[:1] * (_FEWEST_PROCESSES - len(found))]


def _weight(rungs: Sequence[str]) -> float:
    """Return the part of the budget of a process that visits these rungs and the bare one."""
    return 1 + sum(_DETAIL_WEIGHT if rung == "detail" else 1.0 for rung in rungs)


def serialised_budget_s(jobs: Sequence[Job]) -> float:
    """Return the budget of a serialised process: its part beside the parts of all jobs."""
    whole = sum(_weight(job.rungs or ()) for job in jobs)
    return _SERIALISED_WEIGHT / whole * sum(job.settings.budget_s for job in jobs)


def _may_be_alone(spec: Spec, settings: Settings) -> bool:
    """Return whether the first process may make a trial call, which nobody records."""
    # On a device the first calls may capture CUDA graphs, of which the records are needed.
    return on_host(spec) and Level.KERNEL not in settings.levels


def on_host(spec: Spec) -> bool:
    """Return whether a target is to run on the host's processor."""
    return (spec.device or "cpu") == "cpu"


def too_slow(call_s: float, jobs: Sequence[Job]) -> bool:
    """Return whether the budget has no room for the rounds by which processes are compared.

    Args:
        call_s: How long a call took, in seconds.
        jobs: The jobs of all processes.
    """
    settings = jobs[0].alone
    if settings is None:
        return False
    rungs = sum(len(job.rungs or ()) for job in jobs)
    warming = rungs + jobs[0].settings.warmup * len(jobs)
    rounds = min(settings.runs or _FEWEST_ROUNDS, _FEWEST_ROUNDS) * (rungs + len(jobs))
    return call_s * (warming + rounds) > settings.budget_s
