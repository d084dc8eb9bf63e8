"""Words the warnings of a trace from counts of missing and ambiguous rows.

While runs are interpreted, warnings are only counted (`WarningCount`). When all processes have
handed over their counts, `warnings_of` adds the counts up and words them.

    counted    dropped, op pass: 1 record of mkl        dropped, op pass: 2 records of mkl
    warning    "mkl lost 3 records of the op runs: what they stood for is missing, not zero"
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from xsp.text import counted

# Code of what should be known of how a trace was made, with nothing amiss.
NOTE = "note"
# Codes that say how noisy the times are.
NOISE = ("wide-interval",)

# Codes, the gravest first: something is missing or wrong; numbers include what they should not;
# noise. All others come between the last two.
_MISSING = (
    *("nothing-called", "interrupted", "cut-short", "provider-failed", "process-failed"),
    *("rank-failed", "rank-missing", "dropped", "damaged", "damaged-times"),
    *("input-used-up", "input-written", "outputs-differ", "spans-left-out", "observed"),
)
_WRONG = (
    "host-ahead",
    *("carries-overhead", "prediction", "unmatched", "child-longer", "structure-varies", "scaled"),
    *("cold-start", "level-left-out", "rank-alone", "passed-over", "raised", "child-processes"),
)
_NOISY = ("busy-machine", "wide-interval", "processes-differ", "residual", "page-faults")


def gravity(code: str) -> int:
    """Return the place of a code's warnings: 0 for those that come first.

    >>> sorted(["residual", "left-out", "dropped"], key=gravity)
    ['dropped', 'left-out', 'residual']
    """
    order = (*_MISSING, *_WRONG)
    if code in order:
        return order.index(code)
    return len(order) + (1 + _NOISY.index(code) if code in _NOISY else 0)


@dataclass(frozen=True, slots=True)
class TraceWarning:
    """Something a reader of the trace should know before trusting a number.

    Attributes:
        code: A short kebab-case name, stable over versions, e.g. ``"unmatched"``.
        message: One or more plain sentences.
    """

    code: str
    message: str


INTERRUPTED = TraceWarning(
    "interrupted",
    "the measurement was interrupted, so times rest on fewer runs than planned. Measure again for "
    "narrower error bars.",
)


Problem = TraceWarning  # its name in earlier versions


@dataclass(frozen=True, slots=True)
class WarningCount:
    """Number of rows that have one warning, in the runs of one pass.

    Attributes:
        code: Code of the warning: a key of `COUNTED`.
        pass_: Name of the pass.
        count: How many rows or records; at least 1.
        provider: Name of the provider whose records are counted; empty where several are meant.
    """

    code: str
    pass_: str
    count: int
    provider: str = ""


# For each code the noun that is counted, and the sentence around the counts.
COUNTED: Mapping[str, tuple[str, str]] = {
    "dropped": (
        "record",
        "{provider} lost {counts}: their spans are missing, not zero. Profile fewer steps at once.",
    ),
    "orphans": (
        "span",
        "{counts} have no parent on their thread and hang under the root; layers may lack their "
        "time.",
    ),
    "no-launch": (
        "kernel",
        "{counts} have no launch in the record (copies included) and hang under the root; layers "
        "may lack their time",
    ),
    "ambiguous": (
        "launch",
        "{counts} may belong to any of several spans that ran at one time; the tree shows the one "
        "that began last",
    ),
    "ambiguous-thread": (
        "library call",
        "{counts} may belong to any of several threads, because the library does not say; the tree "
        "shows them on the step's own",
    ),
}

# Warnings of rows whose parent is not certain; a synchronous measurement may tell the parent.
AMBIGUITIES = ("ambiguous", "ambiguous-thread", "no-launch")

_REMEDY = ". `xsp profile --synchronous` may show which."
_IN_VAIN = ". The synchronous pass does not show which."


def warnings_of(
    counts: Iterable[WarningCount], *, synchronous: bool = False
) -> tuple[TraceWarning, ...]:
    """Return one warning for each code and provider that was counted, over all passes.

    Args:
        counts: In any order; counts of one code, provider and pass are added up.
        synchronous: Whether there is a synchronous measurement; the counts are what it left
            ambiguous.

    >>> counts = [WarningCount("dropped", "op", 1, "mkl"), WarningCount("dropped", "op", 2, "mkl")]
    >>> warnings_of(counts)[0].message.partition(":")[0]
    'mkl lost 3 records of the op runs'
    """
    sums: dict[tuple[str, str], dict[str, int]] = {}
    for each in counts:
        passes = sums.setdefault((each.code, each.provider), {})
        passes[each.pass_] = passes.get(each.pass_, 0) + each.count
    return tuple(
        _warning(code, provider, passes, synchronous=synchronous)
        for (code, provider), passes in sums.items()
    )


def resolved(counts: Mapping[tuple[str, str], int]) -> TraceWarning:
    """Return the warning that says of how many ambiguous rows the parents were found.

    Args:
        counts: How many rows, by the code of the warning that the rows had and the pass.

    >>> resolved({("ambiguous", "op"): 2, ("no-launch", "op"): 1}).message.partition(" may ")[0]
    '2 launches, 1 kernel'
    """
    sums: dict[str, int] = {}
    for (code, _), count in counts.items():
        sums[code] = sums.get(code, 0) + count
    rows = ", ".join(counted(count, COUNTED[code][0]) for code, count in sums.items())
    return TraceWarning(
        "settled",
        f"{rows} may have belonged to any of several spans; the synchronous pass showed which, so "
        "the "
        "tree is right.",
    )


def _warning(
    code: str, provider: str, passes: Mapping[str, int], *, synchronous: bool
) -> TraceWarning:
    noun, sentence = COUNTED[code]
    counts = ", ".join(f"{counted(n, noun)} of the {pass_} runs" for pass_, n in passes.items())
    remedy = "" if code not in AMBIGUITIES else _IN_VAIN if synchronous else _REMEDY
    return TraceWarning(code, sentence.format(counts=counts, provider=provider) + remedy)
