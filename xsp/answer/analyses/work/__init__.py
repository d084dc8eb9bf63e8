"""Work: the spans of a trace in, what each computes and moves, and what its device can do at most.

`work_of` (span_work.py) takes counters and library calls (recorded_work.py) before the formulas of
operators (operator_work.py, formula.py; of other frameworks than PyTorch graph_work.py,
graph_formula.py). `roof_of` (roof.py) knows devices by name
(device_peak.py), and machines by what `xsp doctor --peak` measured there.
"""

from xsp.answer.analyses.work.roof import Roof, roof_of, with_peak
from xsp.answer.analyses.work.span_work import (
    around,
    dispatching,
    subtree_sum,
    unknown_calls,
    work_of,
)

__all__ = [
    "Roof",
    "around",
    "dispatching",
    "roof_of",
    "subtree_sum",
    "unknown_calls",
    "with_peak",
    "work_of",
]
