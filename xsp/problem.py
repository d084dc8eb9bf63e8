"""Problems of a trace: counts of missing and ambiguous rows in, sentences for the reader out.

While runs are interpreted, problems are only counted (`ProblemCount`). When all processes have
handed over their counts, `problems_of` adds the counts up and words them.

    counted    dropped, op rung: 1 record of mkl        dropped, op rung: 2 records of mkl
    problem    "mkl lost 3 records of the op runs: what they stood for is missing, not zero"
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from xsp.text import counted

# Code of what should be known of how a trace was made, with nothing amiss.
NOTE = "note"


@dataclass(frozen=True, slots=True)
class Problem:
    """Something a reader of the trace should know before trusting a number.

    Attributes:
        code: A short kebab-case name, stable over versions, e.g. ``"unmatched"``.
        message: One or more plain sentences.
    """

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class ProblemCount:
    """How many rows of the runs of one rung have a problem.

    Attributes:
        code: Code of the problem: a key of `COUNTED`.
        rung: Name of the rung.
        count: How many rows or records; at least 1.
        provider: Name of the provider whose records are counted; empty where several are meant.
    """

    code: str
    rung: str
    count: int
    provider: str = ""


# For each code the noun that is counted, and the sentence around the counts.
COUNTED: Mapping[str, tuple[str, str]] = {
    "dropped": ("record", "{provider} lost {counts}: what they stood for is missing, not zero"),
    "orphans": (
        "span",
        "no parent was found on the thread of {counts}; they hang under the root, and say nothing "
        "of the layer that caused them",
    ),
    "no-launch": (
        "kernel",
        "no launch was seen of {counts}, copies counted in; they hang under the root, and say "
        "nothing of the layer that caused them",
    ),
    "ambiguous": (
        "launch",
        "{counts} may belong to any of several spans that ran at one time; shown is the one that "
        "began last",
    ),
    "ambiguous-thread": (
        "library call",
        "{counts} may belong to any of several threads, for the library does not tell which; they "
        "are shown on the evaluation's own",
    ),
}

# Problems of rows whose parent is not certain; a serialised run may tell the parent.
AMBIGUITIES = ("ambiguous", "ambiguous-thread", "no-launch")

_REMEDY = (
    "; a serialised run, in which less happens at one time (CUDA_LAUNCH_BLOCKING=1, one thread), "
    "may show which: `xsp profile` makes one of a model or a function"
)
_IN_VAIN = "; the serialised run does not show which"


def problems_of(counts: Iterable[ProblemCount], *, serialised: bool = False) -> tuple[Problem, ...]:
    """Return one problem for each code and provider that was counted, over all rungs.

    Args:
        counts: In any order; counts of one code, provider and rung are added up.
        serialised: Whether a serialised run has been made; the counts are what it left ambiguous.

    >>> counts = [ProblemCount("dropped", "op", 1, "mkl"), ProblemCount("dropped", "op", 2, "mkl")]
    >>> problems_of(counts)[0].message.partition(":")[0]
    'mkl lost 3 records of the op runs'
    """
    sums: dict[tuple[str, str], dict[str, int]] = {}
    for each in counts:
        rungs = sums.setdefault((each.code, each.provider), {})
        rungs[each.rung] = rungs.get(each.rung, 0) + each.count
    return tuple(
        _problem(code, provider, rungs, serialised=serialised)
        for (code, provider), rungs in sums.items()
    )


def resolved(counts: Mapping[str, int]) -> Problem:
    """Return the problem that says of how many ambiguous rows a serialised run told the parents.

    Args:
        counts: How many rows, by the code of the problem that the rows had.

    >>> resolved({"ambiguous": 2, "no-launch": 1}).message.partition(" may ")[0]
    '2 launches, 1 kernel'
    """
    rows = ", ".join(counted(count, COUNTED[code][0]) for code, count in counts.items())
    return Problem(
        "settled",
        f"{rows} may have belonged to any of several spans; a serialised run, in which the host "
        "waits for each kernel and libraries use one thread, showed which",
    )


def _problem(code: str, provider: str, rungs: Mapping[str, int], *, serialised: bool) -> Problem:
    noun, sentence = COUNTED[code]
    counts = ", ".join(f"{counted(n, noun)} of the {rung} runs" for rung, n in rungs.items())
    remedy = "" if code not in AMBIGUITIES else _IN_VAIN if serialised else _REMEDY
    return Problem(code, sentence.format(counts=counts, provider=provider) + remedy)
