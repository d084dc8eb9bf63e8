"""Programs whose truth is known: a script, the log that hooks would have written of it, the truth.

`programs` (writer.py) writes a random script of calls, layers, training steps, regions, parts and
threads (script.py); `simulate` (run.py) runs it on a machine of moods (machine.py), on which hooks
cost time, and returns what was recorded along with how long everything took without them
(truth.py). Time passes by addition: nothing waits, and nothing is measured.
"""

from simulated_program.machine import QUIET, Machine, machines
from simulated_program.run import Simulated, shifted, simulate
from simulated_program.script import Do, Script, What
from simulated_program.truth import Event, Truth
from simulated_program.writer import STYLES, Plan, of_style, plans, write

__all__ = [
    "QUIET",
    "STYLES",
    "Do",
    "Event",
    "Machine",
    "Plan",
    "Script",
    "Simulated",
    "Truth",
    "What",
    "machines",
    "of_style",
    "plans",
    "shifted",
    "simulate",
    "write",
]
