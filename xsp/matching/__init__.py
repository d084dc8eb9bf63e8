"""Finds the same span again in all runs of a measurement.

`observe` puts the rows of all runs into one frame in which equal spans have equal numbers. `run`
says what a run and a pass are, `ancestry` climbs trees of rows, `path` hashes and names the way
from the root to a row, `run_table` holds the frame of all runs, `structure` finds the typical
run, `summary` makes one number of a span's times in all runs, with what these say of its error,
`machine_speed` tells how the machine's speed moved meanwhile, and `process_speed` how fast each of
several processes was. `union` adds up intervals that overlap, `concurrency` divides sums over
spans that ran at once.
"""

from xsp.matching.ancestry import (
    Ints,
    depths,
    generations,
    highest,
    innermost,
    inverse,
    is_forward,
    lineage,
    nearest,
    nearest_outer,
    numbered,
    rearranged,
    roots_of,
    subtree_sums,
)
from xsp.matching.concurrency import Shares, gathering, shares, sibling_shares
from xsp.matching.machine_speed import FEWEST_ROUNDS, Series, SlowLevel, slow_level
from xsp.matching.path import Keys, lineage_keys, mix, path_names
from xsp.matching.process_speed import ProcessSpeeds, process_speeds
from xsp.matching.run import Pass, Run, ladder
from xsp.matching.run_table import ROOT, Observations, observe
from xsp.matching.structure import (
    RunSpans,
    has_usual_structure,
    matched,
    nearest_run,
    run_spans,
    signatures,
    steady_signatures,
    typical_run,
    unsteady,
)
from xsp.matching.summary import (
    Z95,
    clustered_error,
    half_width,
    pulls,
    ranks_of,
    standard_error,
    student,
    summarize,
    trimmed_mean,
)
from xsp.matching.tree_row import (
    ON_DEVICE,
    has_provenance,
    inside_costs,
    is_ambiguous,
    mark_ambiguous,
    on_device,
    orders,
    with_inside_costs,
)
from xsp.matching.union import Times, clipped, covered, covered_below, covered_part, free, united

__all__ = [
    "FEWEST_ROUNDS",
    "ON_DEVICE",
    "ROOT",
    "Z95",
    "Ints",
    "Keys",
    "Observations",
    "Pass",
    "ProcessSpeeds",
    "Run",
    "RunSpans",
    "Series",
    "Shares",
    "SlowLevel",
    "Times",
    "clipped",
    "clustered_error",
    "covered",
    "covered_below",
    "covered_part",
    "depths",
    "free",
    "gathering",
    "generations",
    "half_width",
    "has_provenance",
    "has_usual_structure",
    "highest",
    "innermost",
    "inside_costs",
    "inverse",
    "is_ambiguous",
    "is_forward",
    "ladder",
    "lineage",
    "lineage_keys",
    "mark_ambiguous",
    "matched",
    "mix",
    "nearest",
    "nearest_outer",
    "nearest_run",
    "numbered",
    "observe",
    "on_device",
    "orders",
    "path_names",
    "process_speeds",
    "pulls",
    "ranks_of",
    "rearranged",
    "roots_of",
    "run_spans",
    "shares",
    "sibling_shares",
    "signatures",
    "slow_level",
    "standard_error",
    "steady_signatures",
    "student",
    "subtree_sums",
    "summarize",
    "trimmed_mean",
    "typical_run",
    "united",
    "unsteady",
    "with_inside_costs",
]
