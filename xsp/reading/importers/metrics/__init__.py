"""Combines recordings with metrics that tools measured of single kernels.

`joining` finds measured kernels again in a recording, and gives them their metrics; `alone` makes
a recording of metrics without one. `profiler_range` finds the kernels of counters that a file of
torch.profiler holds.
"""

from xsp.reading.importers.metrics.alone import alone
from xsp.reading.importers.metrics.joining import joined
from xsp.reading.importers.metrics.profiler_range import CATEGORY, with_profiler_ranges

__all__ = ["CATEGORY", "alone", "joined", "with_profiler_ranges"]
