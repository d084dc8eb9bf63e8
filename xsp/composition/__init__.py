"""Composition: the journal of a program, and visits of its groups, in; its whole trace out.

`program_traces` (outcome.py) leads through the files. The runs of each group (group.py) are
merged, as those of any measurement. The journal (journal.py) becomes nested parts (part.py) and
times without xsp (timeline.py), which are put together with the groups' traces (tree.py) and said
in sentences (summary.py). `side_by_side` (comparison.py) compares the layers of groups. What was
recorded of collectives (collective.py) is for other ranks of a distributed program.
"""

from xsp.composition.comparison import side_by_side
from xsp.composition.group import Group, Groups, labels
from xsp.composition.journal import MARKS_LOST, Evaluation, Journal, Mark, Pause, took_ns
from xsp.composition.outcome import SLOW_NS, Outcome, Purpose, program_traces

__all__ = [
    "MARKS_LOST",
    "SLOW_NS",
    "Evaluation",
    "Group",
    "Groups",
    "Journal",
    "Mark",
    "Outcome",
    "Pause",
    "Purpose",
    "labels",
    "program_traces",
    "side_by_side",
    "took_ns",
]
