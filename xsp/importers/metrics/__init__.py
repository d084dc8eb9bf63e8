"""Metrics of single kernels in, recordings whose kernels have the metrics out.

`joining` finds the kernels of a table of metrics again in recordings, or makes a recording of the
table alone; `profiler_range` does so for the counters that a file of torch.profiler holds.
"""

from xsp.importers.metrics.joining import alone, joined
from xsp.importers.metrics.profiler_range import CATEGORY, with_profiler_ranges

__all__ = ["CATEGORY", "alone", "joined", "with_profiler_ranges"]
