"""The basis of results: a target and how it is measured in, facts that make results equal out.

Results that rest on the same facts need not be measured again: target, plan, versions, machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from xsp.session import Settings, describe_environment
from xsp.target import FRAMEWORKS, SOURCES, Spec

# Of the packages whose versions are told these take no part in what is timed.
_BESIDE = ("click", "rich", "psutil", "polars")

# Packages of each framework; those of frameworks that do not run a target are not told.
_OF_FRAMEWORKS: Mapping[str, tuple[str, ...]] = {
    "torch": ("torch",),
    "tensorflow": ("tensorflow",),
    "onnxruntime": ("onnxruntime", "onnx"),
    "jax": ("jax", "jaxlib", "flax", "equinox"),
}


def basis_of(
    spec: Spec, plan: Settings, machine: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the facts that results rest on beside their settings, by what they are facts of.

    Args:
        spec: The target.
        plan: How each point is measured.
        machine: What `machine_facts` returned where results are measured; None: they are measured
            here.
    """
    facts = {"target": spec.target}
    if spec.file is not None and spec.file.is_file():
        facts["file"] = _content(spec.file)
    facts["levels"] = ", ".join(sorted(level.label for level in plan.levels))
    facts["runs"] = str(plan.runs or "until precise")
    facts["budget"] = f"{plan.budget_s:g} s"
    beside = _beside(spec)
    software = machine_facts() if machine is None else machine
    return facts | {name: fact for name, fact in software.items() if name not in beside}


def _beside(spec: Spec) -> frozenset[str]:
    """Return the packages that take no part in running a target: of a function's, nobody knows."""
    if not spec.source:
        return frozenset()
    used = {spec.runs_on}
    if spec.runs_on == "onnxruntime":
        used |= set(FRAMEWORKS[spec.source])  # PyTorch exports its models for that
    others = {name for key, names in _OF_FRAMEWORKS.items() if key not in used for name in names}
    sources = {name for name in SOURCES if name not in _OF_FRAMEWORKS}
    return frozenset(others) | (sources - {spec.source, *used})


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return what differs between two bases, in words.

    >>> changes({"torch": "2.8", "cpu": "A"}, {"torch": "2.9", "cpu": "A"})
    ['torch was 2.8 and is 2.9']
    """
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return [
        f"{name} was {before.get(name, 'missing')} and is {now.get(name, 'missing')}"
        for name in names
    ]


def machine_facts() -> dict[str, str]:
    """Return the facts of this machine and its software that results rest on."""
    environment = describe_environment()
    facts = {"python": str(environment["python"])}
    versions, threads = environment["versions"], environment["threads"]
    facts |= {name: version for name, version in versions.items() if name not in _BESIDE}
    facts |= {name: str(value) for name, value in threads.items() if name != "operators"}
    facts |= environment["choices"]
    for name in ("host_id", "cpu", "usable_cores"):
        facts[name.replace("_", " ")] = str(environment[name])
    gpus = enumerate(environment["gpus"])
    return facts | {f"GPU {number}": " ".join(gpu.values()) for number, gpu in gpus}


def _content(path: Path) -> str:
    """Return a short checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
