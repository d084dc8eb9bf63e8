"""Counts hardware events of the few kernels that deserve it, with Nsight Compute.

`chosen` (choice.py) picks kernels of a trace by their share of the device's time. `command` and
`run` (ncu.py) have `ncu` count them while a program runs again, and `with_counters` (join.py) gives
the counters to the kernels of the trace, where rooflines and advice find them.
"""

from xsp.answer.counters.choice import SCHEMA, chosen
from xsp.answer.counters.join import with_counters
from xsp.answer.counters.ncu import SETS, command, run

__all__ = ["SCHEMA", "SETS", "chosen", "command", "run", "with_counters"]
