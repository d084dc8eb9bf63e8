"""Counts minor page faults, and finds the frame that a collection of garbage interrupts.

A minor page fault is the system's work of handing a page of memory to the process: a microsecond
in which the program stands still. An allocator that gives memory back to the system after each
step pays for the same pages again in the next.
"""

from __future__ import annotations

import gc
import sys
from types import FrameType

if sys.platform == "win32":  # which has no such count

    def page_faults() -> int | None:
        """Return None: the number of page faults is not known here."""
        return None

else:
    import resource

    def page_faults() -> int | None:
        """Return how many minor page faults all threads of this process have taken so far."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def interrupted(frame: FrameType | None) -> FrameType | None:
    """Return the frame that a collection interrupts, if one of `gc.callbacks` runs, else the frame.

    Whoever waits for Python's lock during a collection gets it in the first of these functions.
    """
    told = {getattr(each, "__code__", None) for each in gc.callbacks}
    while frame is not None and frame.f_code in told:
        frame = frame.f_back
    return frame
