"""xsp profiles machine-learning models across the whole stack, and makes a trace of each model.

`import xsp` loads nothing heavy: a name in `_HOMES` loads its module when it is first used.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from xsp.delivery import bind
from xsp.errors import (
    AnalysisError,
    ExportError,
    MeasurementError,
    TargetFailedError,
    TraceFormatError,
    UnknownTargetError,
    XspError,
)
from xsp.errors import ProviderError as ProviderError  # for providers: `xsp.provider` has it too
from xsp.level import Kind, Level
from xsp.tracer import span

if TYPE_CHECKING:
    from xsp import analyses, plot
    from xsp.answer.comparison import Comparison, compare
    from xsp.measuring.call import measure
    from xsp.measuring.program import profile, profile_on_signal, schedule
    from xsp.progress import StopMeasurement
    from xsp.reading.importers import load, read
    from xsp.show.page import report
    from xsp.trace import Trace
    from xsp.trace.document import Span
    from xsp.warning import TraceWarning

__version__ = "0.1.0"

__all__ = [
    "AnalysisError",
    "Comparison",
    "ExportError",
    "Kind",
    "Level",
    "MeasurementError",
    "Span",
    "StopMeasurement",
    "TargetFailedError",
    "Trace",
    "TraceFormatError",
    "TraceWarning",
    "UnknownTargetError",
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

# Names of earlier versions.
_FORMER = {"Enough": "StopMeasurement", "Problem": "TraceWarning"}
_HOMES = {
    "analyses": "xsp.answer.analyses",
    "Comparison": "xsp.answer.comparison",
    "compare": "xsp.answer.comparison",
    "TraceWarning": "xsp.warning",
    "Span": "xsp.trace.document",
    "StopMeasurement": "xsp.progress",
    "Trace": "xsp.trace",
    "load": "xsp.importers",
    "load_ipython_extension": "xsp.integration.jupyter",
    "measure": "xsp.measuring.call",
    "plot": "xsp.show.plot",
    "profile": "xsp.measuring.program",
    "profile_on_signal": "xsp.measuring.program",
    "read": "xsp.importers",
    "report": "xsp.show.page",
    "schedule": "xsp.measuring.program",
}


if not TYPE_CHECKING:  # else every misspelt name would pass the type checker

    def __getattr__(name: str) -> Any:
        """Load the module of a public name when the name is first used."""
        known = _FORMER.get(name, name)
        if known not in _HOMES:
            raise AttributeError(f"module 'xsp' has no attribute {name!r}")
        home = importlib.import_module(_HOMES[known])
        value = home if home.__name__.endswith(f".{name}") else getattr(home, known)
        globals()[name] = value
        return value


def _later(module: str, function: str) -> Callable[..., Any]:
    """Make a function that loads its module when it is first called."""

    def call(*arguments: Any, **options: Any) -> Any:
        return getattr(importlib.import_module(module), function)(*arguments, **options)

    return call


bind("export", _later("xsp.export", "export"))
bind("report", _later("xsp.show.page", "report"))
bind("advice", _later("xsp.answer.analyses", "advice"))
bind("picture", _later("xsp.show.plot", "picture_of"))
bind("look_next", _later("xsp.answer.analyses.advice.advice", "look_next"))


def __dir__() -> list[str]:
    return sorted(__all__)
