"""Evaluations: one run, its paths and ancestry, and the same span in all runs."""

from xsp.evaluation.path import Keys, depths, generations
from xsp.evaluation.run import Run, Rung, ladder
from xsp.evaluation.run_table import (
    Observations,
    columns_of,
    covered,
    durations,
    observe,
    process_factors,
)
from xsp.evaluation.structure import Structure, nearest_run, signatures, structure_of, typical_run
from xsp.evaluation.summary import (
    Ranks,
    bootstrap_interval,
    mean_between,
    ranks_of,
    standard_error,
    summarise,
    trimmed_mean,
    trimmed_ranks,
)

__all__ = [
    "Keys",
    "Observations",
    "Ranks",
    "Run",
    "Rung",
    "Structure",
    "bootstrap_interval",
    "columns_of",
    "covered",
    "depths",
    "durations",
    "generations",
    "ladder",
    "mean_between",
    "nearest_run",
    "observe",
    "process_factors",
    "ranks_of",
    "signatures",
    "standard_error",
    "structure_of",
    "summarise",
    "trimmed_mean",
    "trimmed_ranks",
    "typical_run",
]
