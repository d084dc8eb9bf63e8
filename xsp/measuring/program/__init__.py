"""Programs: profiling a `with` block, a decorated function, or a running process.

`profile` (block.py) ties recording (`xsp.record.program`) to reading (`xsp.reading.program`);
`profile_on_signal` (on_signal.py) profiles a program when it is asked to, `attach` (remote.py) asks
another process; repeat.py repeats the
call of a block that made hardly any.
"""

from xsp.measuring.program.block import profile
from xsp.measuring.program.on_signal import profile_on_signal
from xsp.measuring.program.remote import attach
from xsp.record.session import schedule

__all__ = [
    "attach",
    "profile",
    "profile_on_signal",
    "schedule",
]
