"""Evaluations: one run, its paths and ancestry, and the same span in all runs."""

from xsp.evaluation.path import Keys, depths, generations
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

__all__ = [
    "ROOT",
    "Keys",
    "Observations",
    "Run",
    "RunSpans",
    "Rung",
    "bootstrap_interval",
    "depths",
    "generations",
    "ladder",
    "nearest_run",
    "observe",
    "ranks_of",
    "run_spans",
    "signatures",
    "standard_error",
    "summarise",
    "trimmed_mean",
    "typical_run",
]
