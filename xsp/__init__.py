"""xsp profiles machine-learning models across the whole stack: a model in, its trace out.

`import xsp` loads nothing heavy: a name in `_HOMES` loads its module when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from xsp.errors import (
    AnalysisError,
    ExportError,
    MeasurementError,
    ProviderError,
    TraceFormatError,
    XspError,
)
from xsp.level import Kind, Level
from xsp.tracer import span

if TYPE_CHECKING:
    from xsp import analyses, plot
    from xsp.comparison import Comparison, compare
    from xsp.importers import read
    from xsp.measurement import Enough, measure
    from xsp.page import report
    from xsp.problem import Problem
    from xsp.program import profile, profile_on_signal, schedule
    from xsp.trace import Trace, load

__version__ = "0.1.0"

__all__ = [
    "AnalysisError",
    "Comparison",
    "Enough",
    "ExportError",
    "Kind",
    "Level",
    "MeasurementError",
    "Problem",
    "ProviderError",
    "Trace",
    "TraceFormatError",
    "XspError",
    "__version__",
    "analyses",
    "compare",
    "load",
    "measure",
    "plot",
    "profile",
    "profile_on_signal",
    "read",
    "report",
    "schedule",
    "span",
]

_HOMES = {
    "analyses": "xsp.analyses",
    "Comparison": "xsp.comparison",
    "compare": "xsp.comparison",
    "Problem": "xsp.problem",
    "Enough": "xsp.measurement",
    "Trace": "xsp.trace",
    "load": "xsp.trace",
    "measure": "xsp.measurement",
    "plot": "xsp.plot",
    "profile": "xsp.program",
    "profile_on_signal": "xsp.program",
    "read": "xsp.importers",
    "report": "xsp.page",
    "schedule": "xsp.program",
}


if not TYPE_CHECKING:  # else every misspelt name would pass the type checker

    def __getattr__(name: str) -> Any:
        """Load the module of a public name when the name is first used."""
        if name not in _HOMES:
            raise AttributeError(f"module 'xsp' has no attribute {name!r}")
        home = importlib.import_module(_HOMES[name])
        value = home if home.__name__ == f"xsp.{name}" else getattr(home, name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
