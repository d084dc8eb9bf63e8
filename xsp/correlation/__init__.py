"""Correlation: rows of visits in, one tree for each evaluation out.

`correlate` (in `parent`) applies the rules, whose order its docstring lists; each rule has a
file: `open_ended`, `launch`, `thread`, `interval`, `backward` and `wait`. The rows go from rule to
rule as a `forest`. Three rules are applied outside of `correlate`: `untimed` before, to each visit;
`cuda_graph` after, to the trees of all visits; and `ambiguity` with a serialised measurement.
"""

from xsp.correlation.ambiguity import Resolution, resolve
from xsp.correlation.cuda_graph import (
    any_captured,
    captures,
    replayed,
    unseen,
    with_captured,
)
from xsp.correlation.parent import Trees, correlate
from xsp.correlation.untimed import place_by_order

__all__ = [
    "Resolution",
    "Trees",
    "any_captured",
    "captures",
    "correlate",
    "place_by_order",
    "replayed",
    "resolve",
    "unseen",
    "with_captured",
]
