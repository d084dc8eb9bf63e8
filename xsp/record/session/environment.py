"""Collects facts about this machine, process and software as JSON.

The facts go into a trace's metadata and into `xsp doctor`.
"""

from __future__ import annotations

import hmac
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

# Packages whose versions are told: they change latencies, or how latencies are read.
PACKAGES = (
    "xsp",
    "torch",
    "torchvision",
    "timm",
    "transformers",
    "tensorflow",
    "keras",
    "onnxruntime",
    "onnx",
    "jax",
    "jaxlib",
    "flax",
    "equinox",
    "cupti-python",
    "numpy",
    "polars",
    "click",
    "rich",
    "psutil",
)
# Numbers of threads of OpenMP, MKL, OpenBLAS, TensorFlow (for an operator, and of operators at
# once) and XLA, which read them when they are loaded.
THREAD_NUMBERS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "NPROC",
)
# What frameworks read when they are imported, and what changes how they compute.
_CHOICES = (
    "KERAS_BACKEND",
    "TF_ENABLE_ONEDNN_OPTS",
    "TF_XLA_FLAGS",
    "XLA_FLAGS",
    "JAX_PLATFORMS",
    "JAX_ENABLE_X64",
    "JAX_DISABLE_JIT",
)
_THREAD_VARIABLES = (*THREAD_NUMBERS, "KMP_AFFINITY", "OMP_PROC_BIND")
_ROOT = Path("/")


def describe_environment() -> dict[str, Any]:
    """Return facts about the machine, this process and the software, as JSON can hold them.

    Nothing heavy is imported: versions come from the packages' metadata,
    thread settings of a framework only if the program has loaded it.
    """
    memory = psutil.virtual_memory()
    variables = {name: os.environ[name] for name in _THREAD_VARIABLES if name in os.environ}
    threads = {"operators": thread_count()} | variables
    # The most memory that PyTorch's tensors took on one CUDA device; None: on none.
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        peak_device_memory_bytes = None
    else:
        peak_device_memory_bytes = max(
            (cuda.max_memory_allocated(each) for each in range(cuda.device_count())), default=0
        )
    return {
        "host": platform.node(),
        "host_id": host_id(),
        "pid": os.getpid(),
        # Not the command line: it may hold credentials.
        "executable": os.path.basename(sys.executable),
        "machine": platform.machine(),
        "cpu": cpu_model(),
        "cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count(),
        "usable_cores": usable_cores(),
        "memory_bytes": memory.total,
        "available_memory_bytes": memory.available,
        "peak_memory_bytes": peak_memory_bytes(),
        "peak_device_memory_bytes": peak_device_memory_bytes,
        "os": platform.platform(),
        "python": platform.python_version(),
        "python_implementation": platform.python_implementation(),
        "versions": versions(),
        "threads": threads,
        "frameworks": describe_frameworks(),
        "choices": {name: os.environ[name] for name in _CHOICES if name in os.environ},
        "gpus": list(_gpus()),
    }


def peak_memory_bytes(process: int | str = "self", root: Path = _ROOT) -> int | None:
    """Return the most memory that a process has had resident; None where that is not told.

    Not by getrusage(2): what that tells of a process begins with the memory of its parent.
    """
    for line in read_text(root / f"proc/{process}/status").splitlines():
        key, _, value = line.partition(":")
        if key == "VmHWM":
            return int(value.split()[0]) * 1024
    return None


def versions() -> dict[str, str]:
    """Return the versions of those packages of `PACKAGES` that are installed."""
    return {package: found for package in PACKAGES if (found := _version(package))}


def host_id(root: Path = _ROOT) -> str:
    """Return an id that differs between machines, made of the machine id, or of the host's name.

    The machine id itself is confidential (machine-id(5)), and traces are handed around. So the
    machine id is the key of a keyed hash (HMAC-SHA-256 of "xsp", 32 hexadecimal digits), which
    gives one value per machine and does not lead back to the key.
    """
    for path in ("etc/machine-id", "var/lib/dbus/machine-id"):
        found = read_text(root / path)
        if found and found != "uninitialized":  # as systemd writes it into images
            return _keyed(found)
    return _keyed(platform.node())


def _keyed(key: str) -> str:
    return hmac.digest(key.encode(), b"xsp", "sha256").hex()[:32]


def cpu_model(root: Path = _ROOT) -> str:
    """Return the processor's name as the kernel states it."""
    for line in read_text(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model"):
            return value.strip()
    return platform.processor() or platform.machine()


def usable_cores(root: Path = _ROOT) -> float:
    """Return how many cores this process may use: those of its affinity, or the quota if less."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return float(min(cores, cpu_quota(root) or cores))


def cpu_quota(root: Path = _ROOT) -> float | None:
    """Return how many cores' time the control group may use; None: no limit.

    Of the limits of the process's group and of all groups above, the narrowest counts.
    """
    quotas = [quota for group in cpu_groups(root) if (quota := _group_quota(group)) is not None]
    return min(quotas, default=None)


def thread_count() -> int | None:
    """Return how many threads the framework's operators use; None if that is not known."""
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_num_threads"):
        return int(torch.get_num_threads())
    tensorflow = _of_tensorflow()
    if "threads" in tensorflow:
        return int(tensorflow["threads"])
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        first = os.environ.get(name, "").split(",")[0].strip()
        if first.isdigit():
            return int(first)
    return None


@contextmanager
def limited_threads(number: int | None) -> Iterator[None]:
    """Let operators and libraries use `number` threads, here and in processes started meanwhile.

    Libraries that are loaded already keep their number of threads, except PyTorch.

    Args:
        number: Number of threads, at least 1; None: leave the numbers as they are.
    """
    if number is None:
        yield
        return
    variables = {name: os.environ.get(name) for name in THREAD_NUMBERS}
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch is not None else None
    os.environ.update(dict.fromkeys(THREAD_NUMBERS, str(number)))
    if torch is not None:
        torch.set_num_threads(number)
    try:
        yield
    finally:
        for name, value in variables.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
        if torch is not None:
            torch.set_num_threads(before)


def describe_frameworks() -> dict[str, dict[str, Any]]:
    """Return how the frameworks that this program has imported compute, by their names.

    Numbers of threads, oneDNN, the back end of Keras, execution providers of ONNX Runtime, devices
    of JAX; nothing is imported, and no device is initialized.
    """
    config = _imported("keras", "config")
    of_keras = {} if config is None else {"backend": config.backend(), "floatx": config.floatx()}
    providers = _imported("onnxruntime", "get_available_providers")
    of_onnxruntime = {} if providers is None else {"providers": list(providers())}
    threads = _imported("torch", "get_num_threads")
    backends = _imported("torch", "backends")
    if threads is None or backends is None:
        of_torch = {}
    else:
        of_torch = {"threads": int(threads()), "onednn": bool(backends.mkldnn.is_available())}
    told = {
        "torch": of_torch,
        "tensorflow": _of_tensorflow(),
        "keras": of_keras,
        "jax": _of_jax(),
        "onnxruntime": of_onnxruntime,
    }
    return {name: facts for name, facts in told.items() if facts}


def _imported(name: str, attribute: str) -> Any:
    """Return an attribute of a module that is imported already, else None."""
    return getattr(sys.modules.get(name), attribute, None)


def _of_tensorflow() -> dict[str, Any]:
    context = _imported("tensorflow.python.eager.context", "context")
    onednn = _imported("tensorflow.python.util._pywrap_util_port", "IsMklEnabled")
    if context is None or onednn is None:
        return {}
    inner, across = (
        # The public property would have TensorFlow look for devices. None or 0: as TensorFlow
        # chooses, which is by the cores that this process may use.
        getattr(context(), f"_{kind}_op_parallelism_threads", None)
        or _number(os.environ.get(f"TF_NUM_{kind.upper()}OP_THREADS", ""))
        or int(usable_cores())
        for kind in ("intra", "inter")
    )
    return {"threads": inner, "operators_at_once": across, "onednn": bool(onednn())}


def _of_jax() -> dict[str, Any]:
    config = _imported("jax", "config")
    if config is None:
        return {}
    known = {"x64": bool(config.jax_enable_x64), "jit": not config.jax_disable_jit}
    begun = _imported("jax._src.xla_bridge", "backends_are_initialized")
    if begun is None or not begun():
        return known
    devices = _imported("jax", "devices")()
    return known | {"backend": devices[0].platform, "devices": len(devices)}


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def _gpus() -> tuple[dict[str, str], ...]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    fields = ("name", "driver_version", "memory.total")
    command = [tool, f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    lines = [line.split(",") for line in answer.stdout.splitlines() if line.count(",") == 2]
    return tuple(
        dict(zip(("name", "driver", "memory"), map(str.strip, line), strict=True)) for line in lines
    )


def cpu_groups(root: Path) -> list[Path]:
    """Return the folders of the control groups that limit this process's CPU time."""
    groups: list[Path] = []
    for line in read_text(root / "proc/self/cgroup").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0":  # cgroup v2: one hierarchy for all controllers
            groups += _with_parents(root / "sys/fs/cgroup", path)
        elif "cpu" in controllers.split(","):
            groups += _with_parents(root / "sys/fs/cgroup/cpu", path)
    return groups


def _with_parents(mount: Path, path: str) -> list[Path]:
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return [mount.joinpath(*parts[:count]) for count in range(len(parts) + 1)]


def _group_quota(group: Path) -> float | None:
    quota, _, period = read_text(group / "cpu.max").partition(" ")
    if not quota:
        quota = read_text(group / "cpu.cfs_quota_us")
        period = read_text(group / "cpu.cfs_period_us")
    if not quota.isdigit() or not period.isdigit() or period == "0":
        return None  # "max", "-1" or no such file: no limit
    return int(quota) / int(period)


def read_text(path: Path) -> str:
    """Return the text of a file of the system, empty where the file cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
