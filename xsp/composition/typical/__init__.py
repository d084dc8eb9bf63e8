"""Typical evaluations: those of a group in; which of them count, and what one of them is like, out.

selection.py says which evaluations latencies rest on, average.py makes an average one where they
call the model unlike numbers of times, and latency.py tells how long those of the program took.
"""

from xsp.composition.typical.average import (
    SUMMED,
    SUMMED_ATTRIBUTES,
    Average,
    average_evaluation,
    with_mean_latency,
)
from xsp.composition.typical.latency import (
    evaluation_times,
    own_latencies,
    times_by_size,
)
from xsp.composition.typical.selection import (
    balanced,
    counting,
    disturbed,
    middling,
    unlike,
    unsettled,
    without,
)

__all__ = [
    "SUMMED",
    "SUMMED_ATTRIBUTES",
    "Average",
    "average_evaluation",
    "balanced",
    "counting",
    "disturbed",
    "evaluation_times",
    "middling",
    "own_latencies",
    "times_by_size",
    "unlike",
    "unsettled",
    "with_mean_latency",
    "without",
]
