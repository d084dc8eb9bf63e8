"""Programs: a `with` block, a decorated function or a script in, its whole trace out.

`profile` (block.py) watches while a program runs. The dispatcher (dispatcher.py) makes each
evaluation a step (turns.py) of the plan of its group (group.py), and keeps a journal (journal.py);
calls are repeated afterwards where that is safe (replay.py). Then the journal becomes nested
parts (part.py) and times without xsp (timeline.py), which are put together with the traces of the
groups (composition.py, summary.py, outcome.py).
"""

from xsp.program.block import profile
from xsp.program.schedule import schedule

__all__ = [
    "profile",
    "schedule",
]
