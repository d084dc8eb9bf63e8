"""The basis of results: a target and how it is measured in, facts that make results equal out.

Results that rest on the same facts need not be measured again: target, plan, versions, machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from xsp.session import Settings, describe_environment
from xsp.target import Spec

# Of the packages whose versions are told these take no part in what is timed.
_BESIDE = ("click", "rich", "psutil", "polars")


def basis_of(spec: Spec, plan: Settings) -> dict[str, str]:
    """Return the facts that results rest on beside their settings, by what they are facts of.

    Args:
        spec: The target.
        plan: How each point is measured.
    """
    facts = {"target": spec.target}
    if spec.file is not None and spec.file.is_file():
        facts["file"] = _content(spec.file)
    facts["levels"] = ", ".join(sorted(level.label for level in plan.levels))
    facts["runs"] = str(plan.runs or "until precise")
    facts["budget"] = f"{plan.budget_s:g} s"
    return facts | _machine(describe_environment())


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


def _content(path: Path) -> str:
    """Return a short checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _machine(environment: Mapping[str, object]) -> dict[str, str]:
    facts = {"python": str(environment["python"])}
    versions, threads = environment["versions"], environment["threads"]
    assert isinstance(versions, dict)
    assert isinstance(threads, dict)
    facts |= {name: version for name, version in versions.items() if name not in _BESIDE}
    facts |= {name: str(value) for name, value in threads.items() if name != "operators"}
    for name in ("host_id", "cpu", "usable_cores"):
        facts[name.replace("_", " ")] = str(environment[name])
    gpus = environment["gpus"]
    assert isinstance(gpus, list)
    facts |= {f"GPU {number}": " ".join(gpu.values()) for number, gpu in enumerate(gpus)}
    return facts
