"""Merges the correlated runs of all passes into one tree of latencies without overhead.

`merge` (in `assembly`) leads through the files. `ladder` makes matrices `[runs, spans]` of the
runs of each pass; `recording_cost` estimates from the `difference` of two passes what recording
one span costs; `inside_cost` what recording costs inside spans; `latency` takes these costs
out of each span's time. `host_timeline` and `device_timeline` draw the spans anew; `device_time`
adds up overlapping work; `check` finds warnings.
"""

from xsp.reading.merge.assembly import Merged, merge

__all__ = [
    "Merged",
    "merge",
]
