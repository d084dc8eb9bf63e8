"""Advice: traces in, a short ranked list of what to look at next out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import polars as pl

from xsp.analyses.advice.batch_rule import batch_sizes
from xsp.analyses.advice.device_rule import (
    host_bound,
    kernels_to_count,
    pageable_copies,
    synchronisations,
)
from xsp.analyses.advice.finding import Case, Finding
from xsp.analyses.advice.library_rule import layout_conversions, reference_implementations
from xsp.analyses.advice.operator_rule import (
    eager_attention,
    framework_overhead,
    fusible_operators,
    slow_operators,
)
from xsp.analyses.advice.program_rule import (
    data_loading,
    fighting_threads,
    first_calls,
    program_code,
)
from xsp.analyses.contract import analysis
from xsp.trace import Trace

_COLUMNS = {
    "trace": "Name of the trace.",
    "rule": "What was found.",
    "advice": "What to do about that.",
    "gain_ns": "Size of the possible gain. Gains overlap: they do not add up.",
    "gain_low_ns": "Lower end of its interval; null where the times have none, as in recordings.",
    "gain_high_ns": "Upper end of its interval.",
    "gain_pct": "That as a share of the trace's latency.",
    "estimate": "How the gain was estimated.",
    "evidence": "The numbers that say so.",
    "verify": "A command, or code, that shows whether it is so.",
}
_NUMBERS = ("gain_ns", "gain_low_ns", "gain_high_ns", "gain_pct")
_TYPES = {name: pl.Float64 if name in _NUMBERS else pl.String for name in _COLUMNS}

RULES: tuple[Callable[[Case], Iterator[Finding]], ...] = (
    reference_implementations,
    layout_conversions,
    fusible_operators,
    slow_operators,
    framework_overhead,
    eager_attention,
    host_bound,
    pageable_copies,
    synchronisations,
    kernels_to_count,
    data_loading,
    program_code,
    first_calls,
    fighting_threads,
)


@analysis("What should I look at next?", _COLUMNS, several=True)
def advice(*traces: Trace) -> pl.DataFrame:
    """Return what rules found in traces, those with the largest possible gain first.

    A finding is told where its gain is 1 % of the trace's latency or more, and more than its
    interval allows to be noise.

    Args:
        traces: Any traces; of one model at several batch sizes, batches are compared.
    """
    # Of no latency there is no share, and nothing to gain.
    cases = [case for trace in traces if (case := Case(trace)).whole_ns > 0]
    found = [(case, finding) for case in cases for rule in RULES for finding in rule(case)]
    found += batch_sizes(cases)
    rows = [_row(case, finding) for case, finding in found if finding.is_worth(case.whole_ns)]
    table = pl.DataFrame(rows, schema=_TYPES)
    return table.sort("gain_pct", descending=True, maintain_order=True).select(*_COLUMNS)


def _row(case: Case, finding: Finding) -> dict[str, str | float | None]:
    # What runs on several streams or threads at once may take longer than the trace.
    gain, error = min(finding.gain_ns, case.whole_ns), finding.error_ns
    return {
        "trace": case.trace.name,
        "rule": finding.rule,
        "advice": finding.advice,
        "gain_ns": gain,
        "gain_low_ns": None if error is None else gain - error,
        "gain_high_ns": None if error is None else gain + error,
        "gain_pct": 100 * gain / case.whole_ns,
        "estimate": finding.estimate,
        "evidence": finding.evidence,
        "verify": finding.verify,
    }
