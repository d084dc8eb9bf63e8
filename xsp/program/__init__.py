"""Programs: a `with` block, a decorated function or a script in, its trace out.

`profile` (block.py) watches while a program runs. The dispatcher (dispatcher.py) makes each
evaluation a step (turns.py) of the plan of its group, and keeps a journal; what runs in between is
looked at (lull.py), and what waiting for xsp costs besides is measured (pause_overhead.py). Calls
are repeated afterwards where that is safe (replay.py), and `xsp.composition` makes the trace.
`profile_on_signal` (on_signal.py) profiles a program when it is asked to.
"""

from xsp.program.block import profile
from xsp.program.on_signal import profile_on_signal
from xsp.session import schedule

__all__ = [
    "profile",
    "profile_on_signal",
    "schedule",
]
