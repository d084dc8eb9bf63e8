"""Composition: the journal of a program, and visits of its groups, in; its whole trace out.

`program_traces` (outcome.py) leads through the files. The runs of each group (group.py) are
merged, as those of any measurement, as far as they count (the folder typical). The journal
(journal.py) becomes nested parts (the folder nested) and times without xsp (timeline.py, by how
long alike parts usually last, usual.py), which are put together with the groups' traces and with
what ran between evaluations (own_time.py) in a tree (tree.py), and said in sentences (summary.py,
generation.py, and problem.py where a reader is misled without).
What was recorded of collectives (collective.py) is for other ranks of a distributed program.
"""

from xsp.composition.group import Group, Groups, elements, labels
from xsp.composition.journal import (
    LOOK_NS,
    MARKS_LOST,
    SLOW_NS,
    Evaluation,
    Journal,
    Lull,
    Mark,
    Pause,
    Place,
    took_ns,
)
from xsp.composition.outcome import Outcome, Purpose, program_traces
from xsp.composition.summary import side_by_side

__all__ = [
    "LOOK_NS",
    "MARKS_LOST",
    "SLOW_NS",
    "Evaluation",
    "Group",
    "Groups",
    "Journal",
    "Lull",
    "Mark",
    "Outcome",
    "Pause",
    "Place",
    "Purpose",
    "elements",
    "labels",
    "program_traces",
    "side_by_side",
    "took_ns",
]
