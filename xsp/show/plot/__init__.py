"""Pictures of the tables of analyses, and the colors that all views share.

Each picture is a function with the name of its analysis: `xsp.plot.layer_latency(trace)` returns
the `Plot` of what `xsp.analyses.layer_latency(trace)` says. `ALL` lists the pictures;
`picture_of(analysis)` finds that of an analysis. Bokeh, which draws them, is loaded when a picture
is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from xsp.show.plot.color import KINDS as KINDS
from xsp.show.plot.color import SERIES as SERIES
from xsp.show.plot.color import Color as Color

if TYPE_CHECKING:
    from xsp.show.plot.document import Picture, Plot
    from xsp.show.plot.gallery import ALL as ALL
    from xsp.show.plot.gallery import (
        advice,
        attribution,
        communication,
        critical_path,
        device_idle,
        device_time,
        kernel_by_name,
        kernel_by_type,
        kernel_roofline,
        launch_overhead,
        layer_device_time,
        layer_kernel_metrics,
        layer_latency,
        layer_latency_by_type,
        layer_memory,
        layer_memory_allocation,
        layer_memory_by_type,
        layer_roofline,
        layer_thirds,
        layer_type_distribution,
        layer_type_work,
        level_latency,
        memory_peak,
        memory_timeline,
        model_information,
        model_roofline,
        module_latency,
        off_cpu,
        operator_latency,
        operator_memory_allocation,
        operator_roofline,
        optimal_batch,
        picture_of,
        primitive_latency,
        rank_imbalance,
        side_by_side,
        thread_states,
        thread_timeline,
        verdict,
    )
    from xsp.show.plot.several import comparison, sweep_curves
    from xsp.show.plot.theme import PAIRS as PAIRS
    from xsp.show.plot.theme import SCRIPT as SCRIPT
    from xsp.show.plot.theme import Theme as Theme
    from xsp.show.plot.theme import themed as themed
    from xsp.show.plot.zoo import (
        zoo_accuracy,
        zoo_layer_types,
        zoo_primitives,
        zoo_roofline,
        zoo_thirds,
        zoo_throughput,
    )

__all__ = [
    "Picture",
    "Plot",
    "advice",
    "attribution",
    "communication",
    "comparison",
    "critical_path",
    "device_idle",
    "device_time",
    "kernel_by_name",
    "kernel_by_type",
    "kernel_roofline",
    "launch_overhead",
    "layer_device_time",
    "layer_kernel_metrics",
    "layer_latency",
    "layer_latency_by_type",
    "layer_memory",
    "layer_memory_allocation",
    "layer_memory_by_type",
    "layer_roofline",
    "layer_thirds",
    "layer_type_distribution",
    "layer_type_work",
    "level_latency",
    "memory_peak",
    "memory_timeline",
    "model_information",
    "model_roofline",
    "module_latency",
    "off_cpu",
    "operator_latency",
    "operator_memory_allocation",
    "operator_roofline",
    "optimal_batch",
    "picture_of",
    "primitive_latency",
    "rank_imbalance",
    "side_by_side",
    "sweep_curves",
    "thread_states",
    "thread_timeline",
    "verdict",
    "zoo_accuracy",
    "zoo_layer_types",
    "zoo_primitives",
    "zoo_roofline",
    "zoo_thirds",
    "zoo_throughput",
]

_HOMES = {
    "ALL": "xsp.show.plot.gallery",
    **dict.fromkeys(("Picture", "Plot"), "xsp.show.plot.document"),
    **dict.fromkeys(("comparison", "sweep_curves"), "xsp.show.plot.several"),
    **dict.fromkeys((name for name in __all__ if name.startswith("zoo_")), "xsp.show.plot.zoo"),
    **dict.fromkeys(("PAIRS", "SCRIPT", "Theme", "themed"), "xsp.show.plot.theme"),
}


if not TYPE_CHECKING:  # else every misspelt name would pass the type checker

    def __getattr__(name: str) -> Any:
        """Load Bokeh and the module of a name when the name is first used."""
        if name not in __all__ and name not in _HOMES:
            from xsp.answer.analyses import FORMER  # noqa: PLC0415

            if former := FORMER.get(name.replace("_", "-")):
                return __getattr__(former.name.replace("-", "_"))
            raise AttributeError(f"module 'xsp.plot' has no attribute {name!r}")
        try:
            home = importlib.import_module(_HOMES.get(name, "xsp.show.plot.gallery"))
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] == "bokeh":
                error.msg = "plots need Bokeh, which is not installed: pip install 'xsp[report]'"
            raise
        globals()[name] = value = getattr(home, name)
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
