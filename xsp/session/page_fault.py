"""Page faults: nothing in, how many minor page faults this process has taken so far out.

A minor page fault is the system's work of handing a page of memory to the process: a microsecond
in which the program stands still. An allocator that gives memory back to the system after each
evaluation pays for the same pages again in the next.
"""

from __future__ import annotations

import sys

if sys.platform == "win32":  # which has no such count

    def page_faults() -> int | None:
        """Return None: the number of page faults is not known here."""
        return None

else:
    import resource

    def page_faults() -> int | None:
        """Return how many minor page faults all threads of this process have taken so far."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
