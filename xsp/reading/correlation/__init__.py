"""Makes one tree for each step from the rows of visits.

`correlate` (in `parent`) applies the rules, whose order its docstring lists; each rule has a
file: `open_ended`, `launch`, `thread`, `interval`, `backward` and `wait`. The rows go from rule to
rule as a `forest`. Two rules are applied outside of `correlate`: `untimed` before, to each visit,
and `cuda_graph` after, to the trees of all visits.
"""

from xsp.reading.correlation.cuda_graph import (
    any_captured,
    captures,
    replayed,
    unseen,
    with_captured,
)
from xsp.reading.correlation.interval import enclosing
from xsp.reading.correlation.parent import Trees, correlate
from xsp.reading.correlation.untimed import place_by_order

__all__ = [
    "Trees",
    "any_captured",
    "captures",
    "correlate",
    "enclosing",
    "place_by_order",
    "replayed",
    "unseen",
    "with_captured",
]
