"""Reads NVIDIA GPUs with NVML, by the module `pynvml` of nvidia-ml-py."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from xsp_levels.monitor.row import Reading, Readings

_INSTALL = "nvidia-ml-py is not installed. Use `pip install 'xsp[cuda]'`."
_ENERGY, _POWER = 83, 186  # NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION (mJ), _POWER_INSTANT (mW)
# Codes of refusals that will not change: invalid argument, not supported, no permission, function
# not found in this driver.
_REFUSED = frozenset({2, 3, 4, 13})
_LOST = 15  # NVML_ERROR_GPU_IS_LOST
_GRAPHICS, _SM, _MEMORY, _CELSIUS = 0, 1, 2, 0  # kinds of clock, and of sensor
# Metrics of GPM (Hopper and later), in per cent.
_GPM = {2: "sm_active_pct", 3: "sm_occupancy_pct", 5: "tensor_active_pct", 10: "dram_active_pct"}
_GPM_NS = 100_000_000  # least time between two samples
_MIXED = (
    "The GPUs are of several models, so CUDA may number them otherwise than NVML. Set "
    "CUDA_DEVICE_ORDER=PCI_BUS_ID."
)


def unavailable() -> str | None:
    """Find the reason why no NVIDIA GPU can be read; None if one can."""
    try:
        nvml = import_module("pynvml")
    except ImportError:
        return _INSTALL
    try:
        nvml.nvmlInit()
        count = nvml.nvmlDeviceGetCount()
        nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        return f"NVML does not start ({error}). Install NVIDIA's driver."
    return None if count else "NVML sees no GPU. Check nvidia-smi."


@dataclass(slots=True)
class Device:
    """A GPU, or a part of one (MIG), that the program may use.

    Attributes:
        number: Its number for CUDA.
        handle: NVML's handle of the whole GPU.
        instance: Number of the GPU instance of a part; None: the whole GPU.
        refused: What NVML does not tell of it.
        samples: GPM's last sample, and one to write; empty: not yet asked, or refused.
        sampled_ns: When the last sample was taken.
        lost: Whether the GPU has vanished.
    """

    number: int
    handle: Any
    instance: int | None = None
    refused: set[str] = field(default_factory=set)
    samples: list[Any] = field(default_factory=list)
    sampled_ns: int = 0
    lost: bool = False


class Nvidia:
    """Reads the NVIDIA GPUs that `CUDA_VISIBLE_DEVICES` leaves."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._nvml = nvml = import_module("pynvml")
        nvml.nvmlInit()
        self._handles = [
            nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())
        ]
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        self.devices = list(self._visible(visible))
        names = {str(nvml.nvmlDeviceGetName(handle)) for handle in self._handles}
        if len(names) > 1 and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
            self.notes.append(_MIXED)
        if any(device.instance is not None for device in self.devices):
            self.notes.append(
                "A MIG instance has no energy counter of its own; energy and power are of the "
                "whole GPU. Stop other work on it."
            )

    def _visible(self, visible: str | None) -> Iterator[Device]:
        """Yield the devices that a list of indices and UUIDs names, as CUDA reads it."""
        if visible is None:
            yield from (Device(number, handle) for number, handle in enumerate(self._handles))
            return
        for number, name in enumerate(part.strip() for part in visible.split(",")):
            found = self._named(name)
            if found is None:
                return  # CUDA ignores all that follows a wrong entry
            yield Device(number, *found)

    def _named(self, name: str) -> tuple[Any, int | None] | None:
        """Return the GPU's handle, and the number of its GPU instance; None if there is none."""
        nvml = self._nvml
        if name.isdecimal():
            return (self._handles[int(name)], None) if int(name) < len(self._handles) else None
        if name.startswith("MIG-GPU-"):  # of drivers before R470: MIG-GPU-UUID/instance/compute
            whole, _, rest = name.removeprefix("MIG-").partition("/")
            found = self._named(whole)
            return found and (found[0], int(rest.partition("/")[0]))
        if name.startswith("MIG-"):
            try:
                part = nvml.nvmlDeviceGetHandleByUUID(name)
                whole = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part)
                return whole, nvml.nvmlDeviceGetGpuInstanceId(part)
            except nvml.NVMLError:
                return None
        # A UUID may be cut short as long as it names one GPU.
        named = [
            handle
            for handle in self._handles
            if name and str(nvml.nvmlDeviceGetUUID(handle)).startswith(name)
        ]
        return (named[0], None) if len(named) == 1 else None

    def fast(self) -> Readings:
        """Read energy and power."""
        offset_ns = time.time_ns() - time.monotonic_ns()
        for device in self._present():
            fields = self._ask(device, "fields", self._fields) or {}
            for number, metric, name in (
                (_ENERGY, "energy_j", "nvmlDeviceGetTotalEnergyConsumption"),
                (_POWER, "power_w", "nvmlDeviceGetPowerUsage"),
            ):
                if number in fields:
                    value, stamp_us = fields[number]
                    at_ns = stamp_us * 1000 - offset_ns if stamp_us else 0
                    yield Reading(metric, value / 1000, device.number, at_ns)
                elif (value := self._ask(device, name)) is not None:
                    yield Reading(metric, value / 1000, device.number)

    def slow(self) -> Readings:
        """Read utilization, clocks and why they are low, memory and temperature."""
        for device in self._present():
            if device.instance is None:  # NVML tells utilization of whole GPUs alone
                rates = self._ask(device, "nvmlDeviceGetUtilizationRates")
                if rates is not None:
                    yield Reading("gpu_busy_pct", float(rates.gpu), device.number)
            for metric, name, *arguments in (
                ("sm_clock_mhz", "nvmlDeviceGetClockInfo", _SM),
                ("memory_clock_mhz", "nvmlDeviceGetClockInfo", _MEMORY),
                ("temperature_c", "nvmlDeviceGetTemperature", _CELSIUS),
                ("throttle_reasons", "nvmlDeviceGetCurrentClocksEventReasons"),
            ):
                value = self._ask(device, str(name), None, *arguments)
                if value is not None:
                    yield Reading(str(metric), float(value), device.number)
            memory = self._ask(device, "nvmlDeviceGetMemoryInfo")
            if memory is not None:
                yield Reading("memory_used_bytes", float(memory.used), device.number)
            yield from self._gpm(device)

    def _present(self) -> list[Device]:
        return [device for device in self.devices if not device.lost]

    def _ask(
        self,
        device: Device,
        name: str,
        function: Callable[..., Any] | None = None,
        *arguments: Any,
    ) -> Any:
        """Ask NVML; the answer is None if NVML refuses, or the GPU has vanished."""
        call = function or getattr(self._nvml, name, None)
        if name in device.refused or device.lost or call is None:
            return None
        try:
            return call(device.handle, *arguments)
        except self._nvml.NVMLError as error:
            code = getattr(error, "value", None)
            if code in _REFUSED:
                device.refused.add(name)
            if code == _LOST:
                device.lost = True
                self.notes.append(
                    f"GPU {device.number} vanished ({error}), so its later readings are missing. "
                    "See dmesg for its error (Xid)."
                )
            return None

    def _fields(self, handle: Any) -> dict[int, tuple[float, int]]:
        """Return number, value and wall time in µs of the fields that NVML has."""
        answers = self._nvml.nvmlDeviceGetFieldValues(handle, [_ENERGY, _POWER])
        kinds = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
        return {
            answer.fieldId: (
                float(getattr(answer.value, kinds[answer.valueType])),
                answer.timestamp,
            )
            for answer in answers
            if answer.nvmlReturn == 0
        }

    def _gpm(self, device: Device) -> Readings:
        """Read what GPM counted since the last sample; nothing on GPUs before Hopper."""
        support = self._ask(device, "nvmlGpmQueryDeviceSupport")
        if support is None or not support.isSupportedDevice:
            device.refused.add("nvmlGpmQueryDeviceSupport")
            return
        now_ns = time.monotonic_ns()
        if device.samples and now_ns - device.sampled_ns < _GPM_NS * 9 // 10:
            return
        nvml = self._nvml

        def sample(handle: Any) -> bool:
            if not device.samples:
                device.samples = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
            if device.instance is None:
                nvml.nvmlGpmSampleGet(handle, device.samples[1])
            else:
                nvml.nvmlGpmMigSampleGet(handle, device.instance, device.samples[1])
            return True

        if not self._ask(device, "gpm", sample):
            return
        since_ns, device.sampled_ns = device.sampled_ns, now_ns
        device.samples.reverse()
        if not since_ns:
            return
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version, request.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(_GPM)
        request.sample2, request.sample1 = device.samples
        for place, number in enumerate(_GPM):
            request.metrics[place].metricId = number
        answer = self._ask(device, "metrics", lambda _: nvml.nvmlGpmMetricsGet(request))
        for place, metric in enumerate(_GPM.values()) if answer is not None else ():
            if answer.metrics[place].nvmlReturn == 0:
                value = float(answer.metrics[place].value)
                yield Reading(metric, value, device.number, now_ns, since_ns)
