"""Problems of ranks: those of each in, those of all out, what several have in common once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from xsp.problem import Problem
from xsp.rank.apart import listed


def problems_of_all(
    problems: Sequence[Iterable[Problem]], names: Sequence[str]
) -> Iterator[Problem]:
    """Yield the problems of several processes, with the names of those that have each.

    Args:
        problems: Of each process.
        names: The name of each.
    """
    having: dict[Problem, list[str]] = {}
    for each, name in zip(problems, names, strict=True):
        for problem in each:
            having.setdefault(problem, []).append(name)
    for problem, named in having.items():
        whose = "" if len(set(named)) == len(names) else f"{listed(named)}: "
        yield Problem(problem.code, whose + problem.message)
