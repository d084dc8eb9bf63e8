"""Evaluations: the runs of a measurement in, the same span found again in all runs out.

`observe` puts the rows of all runs into one frame in which equal spans have equal numbers. `run`
says what a run and a rung are, `ancestry` climbs trees of rows, `path` hashes and names the way
from the root to a row, `run_table` holds the frame of all runs, `structure` finds the typical
run, `summary` makes one number, with its interval, of a span's times in all runs, and `union`
adds up intervals that overlap.
"""

from xsp.evaluation.ancestry import (
    Ints,
    depths,
    generations,
    highest,
    inverse,
    is_forward,
    lineage,
    nearest,
    nearest_outer,
    rearranged,
    roots_of,
)
from xsp.evaluation.path import Keys, lineage_keys, mix
from xsp.evaluation.run import Run, Rung, ladder
from xsp.evaluation.run_table import ROOT, Observations, observe
from xsp.evaluation.structure import RunSpans, nearest_run, run_spans, signatures, typical_run
from xsp.evaluation.summary import (
    bootstrap_interval,
    ranks_of,
    standard_error,
    summarise,
    trimmed_mean,
)
from xsp.evaluation.tree_row import ON_DEVICE, is_ambiguous, mark_ambiguous, on_device, orders
from xsp.evaluation.union import covered, covered_below

__all__ = [
    "ON_DEVICE",
    "ROOT",
    "Ints",
    "Keys",
    "Observations",
    "Run",
    "RunSpans",
    "Rung",
    "bootstrap_interval",
    "covered",
    "covered_below",
    "depths",
    "generations",
    "highest",
    "inverse",
    "is_ambiguous",
    "is_forward",
    "ladder",
    "lineage",
    "lineage_keys",
    "mark_ambiguous",
    "mix",
    "nearest",
    "nearest_outer",
    "nearest_run",
    "observe",
    "on_device",
    "orders",
    "ranks_of",
    "rearranged",
    "roots_of",
    "run_spans",
    "signatures",
    "standard_error",
    "summarise",
    "trimmed_mean",
    "typical_run",
]
