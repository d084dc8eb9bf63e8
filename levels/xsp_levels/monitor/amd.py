"""Reads AMD GPUs with amdsmi, which comes with ROCm."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

from xsp_levels.monitor.row import Reading, Readings

# For each metric: amdsmi's function, and the keys that it has had for the value.
_VALUES = (
    ("power_w", "amdsmi_get_power_info", ("current_socket_power", "average_socket_power")),
    ("gpu_busy_pct", "amdsmi_get_gpu_activity", ("gfx_activity",)),
)
_DRIVER = "/dev/kfd"
_MICRO = 1e-6


def _library() -> tuple[Any, str]:
    """Return amdsmi, started, or None with the reason."""
    if not os.path.exists(_DRIVER):  # amdsmi prints when it finds no library
        return None, "there is no AMD GPU, or its driver amdgpu is not loaded."
    try:
        library = import_module("amdsmi")
    except ModuleNotFoundError:
        return (
            None,
            "amdsmi is not installed. Install ROCm's: pip install /opt/rocm/share/amd_smi.",
        )
    except Exception as error:  # noqa: BLE001  amdsmi 7.0 raises KeyError without its library
        return None, f"amdsmi cannot be imported ({type(error).__name__}: {error}). Install ROCm."
    try:
        library.amdsmi_init()
        if library.amdsmi_get_processor_handles():
            return library, ""
    except library.AmdSmiException as error:
        return None, f"amdsmi cannot start ({error}). Load the driver amdgpu."
    return None, "amdsmi sees no GPU. Check the driver amdgpu."


def unavailable() -> str | None:
    """Find the reason why no AMD GPU can be read; None if one can."""
    return _library()[1] or None


class Amd:
    """Reads the AMD GPUs that the program may use."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._library, _ = _library()
        handles = list(self._library.amdsmi_get_processor_handles()) if self._library else []
        visible = os.environ.get("ROCR_VISIBLE_DEVICES", os.environ.get("HIP_VISIBLE_DEVICES"))
        if visible is not None:
            chosen = [each.strip() for each in visible.split(",")]
            handles = [handles[int(n)] for n in chosen if n.isdecimal() and int(n) < len(handles)]
        self._handles = handles

    def fast(self) -> Readings:
        """Read energy and power."""
        for device, handle in enumerate(self._handles):
            energy = self._asked("amdsmi_get_energy_count", handle)
            counted = _number(energy, ("energy_accumulator", "power"))
            resolution = _number(energy, ("counter_resolution",))
            if counted is not None and resolution is not None:
                yield Reading("energy_j", counted * resolution * _MICRO, device)
            yield from self._values(_VALUES[:1], device, handle)

    def slow(self) -> Readings:
        """Read everything else."""
        for device, handle in enumerate(self._handles):
            yield from self._values(_VALUES[1:], device, handle)

    def _values(self, values: Any, device: int, handle: Any) -> Readings:
        for metric, function, keys in values:
            value = _number(self._asked(function, handle), keys)
            if value is not None:
                yield Reading(metric, value, device)

    def _asked(self, function: str, handle: Any) -> Any:
        call: Callable[[Any], Any] | None = getattr(self._library, function, None)
        with suppress(self._library.AmdSmiException):  # refused, or not supported
            return call(handle) if call else None
        return None


def _number(answer: Any, keys: tuple[str, ...]) -> float | None:
    """Return the first number that an answer has under one of the keys; "N/A" is none."""
    for key in keys:
        value = answer.get(key) if isinstance(answer, dict) else None
        if isinstance(value, (int, float)):
            return float(value)
    return None
