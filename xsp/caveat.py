"""Caveats: problems that are counted rung by rung, and the sentences that tell them."""

from __future__ import annotations

from collections.abc import Mapping

from xsp.quantity import counted
from xsp.trace import Problem

_REMEDY = (
    "; a serialised run, in which less happens at one time (CUDA_LAUNCH_BLOCKING=1, one thread), "
    "may show which: `xsp profile` makes one of a model or a function"
)
_IN_VAIN = "; the serialised run does not show which"

# Of what, and the sentence around the counts.
_COUNTED = {
    "dropped": ("record", "{who} lost {said}: what they stood for is missing, not zero"),
    "orphans": (
        "span",
        "no parent was found on the thread of {said}; they hang under the root, and say nothing "
        "of the layer that caused them",
    ),
    "no-launch": (
        "kernel",
        "no launch was seen of {said}, copies counted in; they hang under the root, and say "
        "nothing of the layer that caused them",
    ),
    "ambiguous": (
        "launch",
        "{said} may belong to any of several spans that ran at one time; shown is the one that "
        "began last",
    ),
    "ambiguous-thread": (
        "library call",
        "{said} may belong to any of several threads, for the library does not tell which; they "
        "are shown on the evaluation's own",
    ),
}

# Those that leave open which span is whose parent: a serialised run may tell.
DOUBTS = ("ambiguous", "ambiguous-thread", "no-launch")


def caveat(
    code: str, counts: Mapping[str, int], who: str = "", *, serialised: bool = False
) -> Problem:
    """Return the problem that so many things of each rung are.

    Args:
        code: The problem's code, one of those above.
        counts: How many, by the name of the rung.
        who: The provider that is to be named.
        serialised: Whether a serialised run has been made.
    """
    noun, sentence = _COUNTED[code]
    said = ", ".join(f"{counted(n, noun)} of the {rung} runs" for rung, n in counts.items())
    more = "" if code not in DOUBTS else _IN_VAIN if serialised else _REMEDY
    return Problem(code, sentence.format(said=said, who=who) + more)


def settled(counts: Mapping[str, int]) -> Problem:
    """Return what a serialised run has settled, as a remark among the problems.

    Args:
        counts: How many rows, by the code of the problem that they were.

    >>> settled({"ambiguous": 2, "no-launch": 1}).message.partition(" may ")[0]
    '2 launches, 1 kernel'
    """
    said = ", ".join(counted(n, _COUNTED[code][0]) for code, n in counts.items())
    return Problem(
        "settled",
        f"{said} may have belonged to any of several spans; a serialised run, in which the host "
        "waits for each kernel and libraries use one thread, showed which",
    )
