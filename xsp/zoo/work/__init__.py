"""Work: a task in, the row and the trace of each of its measurements out, made in a process.

`carry_out` (carrying.py) starts a process (process.py), tells it what to do (job.py), listens to
it, and ends it where a limit is exceeded (memory.py) or when its work is done; what it prints is
drained (output.py). The process (part.py) loads and measures the model, compares its outputs
(repetition.py), and reaches no other machine (network.py).
"""

from xsp.zoo.work.carrying import Tell, carry_out, skipped
from xsp.zoo.work.process import OUT_OF_MEMORY, limit_facts, remove_left
from xsp.zoo.work.repetition import UNKNOWN

__all__ = ["OUT_OF_MEMORY", "UNKNOWN", "Tell", "carry_out", "limit_facts", "remove_left", "skipped"]
