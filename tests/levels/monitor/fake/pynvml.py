# ruff: noqa
# mypy: ignore-errors
"""A fake of nvidia-ml-py that plays a written table: the file that `FAKE_NVML` names.

The table is JSON: `gpus`, a list of mappings. Keys of a GPU: `uuid`, `name`, `watts` (a number, or
pairs of seconds and watts), `update_s` of the energy counter, `energy_scale`, `wraps_at_j`,
`stamped` (whether fields have times), `refuse` (function -> code), `lost_after_s`, `busy`, `gpm`
(metric -> per cent), `reasons`, `mig` (UUID of an instance -> its number).
"""

import json
import os
import time
from types import SimpleNamespace

NVML_GPM_METRICS_GET_VERSION = 1
_BEGAN = time.monotonic()
_CODES = {"NotSupported": 3, "NoPermission": 4, "Unknown": 999}


class NVMLError(Exception):
    def __init__(self, value):
        super().__init__(
            {3: "Not Supported", 4: "Insufficient Permissions"}.get(value, "GPU is lost")
        )
        self.value = value


def _table():
    with open(os.environ["FAKE_NVML"], encoding="utf-8") as file:
        return json.load(file)["gpus"]


def nvmlInit():
    if not os.environ.get("FAKE_NVML"):
        raise NVMLError(12)
    global _GPUS
    _GPUS = [SimpleNamespace(index=at, samples=0, **each) for at, each in enumerate(_table())]


def nvmlShutdown():
    pass


def nvmlDeviceGetCount():
    return len(_GPUS)


def nvmlDeviceGetHandleByIndex(index):
    return _GPUS[index]


def nvmlDeviceGetUUID(gpu):
    return gpu.uuid


def nvmlDeviceGetName(gpu):
    return getattr(gpu, "name", "Fake H100")


def nvmlDeviceGetHandleByUUID(uuid):
    for gpu in _GPUS:
        if uuid in getattr(gpu, "mig", {}):
            return SimpleNamespace(whole=gpu, number=gpu.mig[uuid])
    raise NVMLError(6)


def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part):
    return part.whole


def nvmlDeviceGetGpuInstanceId(part):
    return part.number


def _asked(gpu, name):
    code = getattr(gpu, "refuse", {}).get(name)
    if code:
        raise NVMLError(_CODES[code])
    if time.monotonic() - _BEGAN > getattr(gpu, "lost_after_s", 1e9):
        raise NVMLError(15)


def _watts(gpu, at):
    if isinstance(gpu.watts, (int, float)):
        return gpu.watts
    return [watts for begin, watts in gpu.watts if begin <= at][-1]


def _joules(gpu, at):
    if isinstance(gpu.watts, (int, float)):
        return gpu.watts * at
    ends = [begin for begin, _ in gpu.watts[1:]] + [1e9]
    return sum(
        watts * max(min(at, end) - begin, 0.0)
        for (begin, watts), end in zip(gpu.watts, ends, strict=True)
    )


def _counter(gpu):
    update = getattr(gpu, "update_s", 0.02)
    at = (time.monotonic() - _BEGAN) // update * update if update else 0.0
    joules = (5000 + _joules(gpu, at)) * getattr(gpu, "energy_scale", 1.0)
    return int(1000 * (joules % getattr(gpu, "wraps_at_j", 1e15))), at


def nvmlDeviceGetFieldValues(gpu, numbers):
    _asked(gpu, "nvmlDeviceGetFieldValues")
    energy, at = _counter(gpu)
    now = time.monotonic() - _BEGAN
    found = []
    for number in numbers:
        value, when = (energy, at) if number == 83 else (int(1000 * _watts(gpu, now)), now)
        wall = time.time_ns() - int((now - when) * 1e9) if getattr(gpu, "stamped", True) else 0
        code = _CODES.get(getattr(gpu, "refuse", {}).get(str(number)), 0)
        kind, name = (3, "ullVal") if number == 83 else (1, "uiVal")
        found.append(
            SimpleNamespace(
                fieldId=number, timestamp=wall // 1000, valueType=kind, nvmlReturn=code,
                value=SimpleNamespace(**{name: value}),
            )
        )  # fmt: skip
    return found


def nvmlDeviceGetTotalEnergyConsumption(gpu):
    _asked(gpu, "nvmlDeviceGetTotalEnergyConsumption")
    return _counter(gpu)[0]


def nvmlDeviceGetPowerUsage(gpu):
    _asked(gpu, "nvmlDeviceGetPowerUsage")
    return int(1000 * _watts(gpu, time.monotonic() - _BEGAN))


def nvmlDeviceGetUtilizationRates(gpu):
    _asked(gpu, "nvmlDeviceGetUtilizationRates")
    return SimpleNamespace(gpu=getattr(gpu, "busy", 98), memory=10)


def nvmlDeviceGetClockInfo(gpu, kind):
    _asked(gpu, "nvmlDeviceGetClockInfo")
    return 1980 if kind == 1 else 2619


def nvmlDeviceGetTemperature(gpu, sensor):
    _asked(gpu, "nvmlDeviceGetTemperature")
    return 61


def nvmlDeviceGetCurrentClocksEventReasons(gpu):
    _asked(gpu, "nvmlDeviceGetCurrentClocksEventReasons")
    return getattr(gpu, "reasons", 0)


def nvmlDeviceGetMemoryInfo(gpu):
    _asked(gpu, "nvmlDeviceGetMemoryInfo")
    return SimpleNamespace(used=3 << 30)


def nvmlGpmQueryDeviceSupport(gpu):
    return SimpleNamespace(isSupportedDevice=int(hasattr(gpu, "gpm")))


def nvmlGpmSampleAlloc():
    return SimpleNamespace(instance=None)


def nvmlGpmSampleGet(gpu, sample):
    sample.gpu = gpu
    sample.instance = None


def nvmlGpmMigSampleGet(gpu, instance, sample):
    sample.gpu = gpu
    sample.instance = instance


def c_nvmlGpmMetricsGet_t():
    return SimpleNamespace(metrics=[SimpleNamespace(nvmlReturn=0) for _ in range(8)])


def nvmlGpmMetricsGet(request):
    for metric in request.metrics[: request.numMetrics]:
        known = request.sample2.gpu.gpm.get(str(metric.metricId))
        metric.nvmlReturn, metric.value = (3, 0.0) if known is None else (0, known)
    return request
