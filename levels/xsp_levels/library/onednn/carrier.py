"""The frameworks that are installed here in; of which oneDNN's calls can be seen, and why, out.

Nothing is imported: whether a framework's copy of oneDNN can be switched is told by its files.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from xsp_levels.library.onednn import switch
from xsp_levels.library.onednn.setting import has_hidden_setting

BRINGING = ("torch", "tensorflow")  # packages that call a oneDNN which they bring
_STRIPPED = (
    "not of {0}: its library lacks the symbol table that tells where its oneDNN's verbose mode "
    "lies (ONEDNN_VERBOSE=profile_exec and ONEDNN_VERBOSE_TIMESTAMP=1, set before the process "
    "starts, have that copy print its calls to the program's output)"
)
_OFF = "not of TensorFlow, for TF_ENABLE_ONEDNN_OPTS=0 is set: its kernels are Eigen's"
_TOO_OLD = (
    "not of TensorFlow, which on this processor calls oneDNN only where TF_ENABLE_ONEDNN_OPTS=1 is "
    "set: its kernels are Eigen's"
)
# What TensorFlow looks for before it calls oneDNN unasked, on x86: its tensorflow/core/util/util.cc
_FEATURES = frozenset(
    {"avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16"}
)
_CPUINFO = Path("/proc/cpuinfo")
_XLA = (
    "of JAX where XLA was asked to call oneDNN (XLA_FLAGS='--xla_cpu_use_onednn=true "
    "--xla_cpu_experimental_onednn_fusion_type=LIBRARY_FUSION_TYPE_DOT'): its own kernels, "
    "Eigen's and YNNPACK's are operators"
)
_MLAS = "not of ONNX Runtime, whose kernels are MLAS's: they are its nodes"
_ASKED = re.compile(r"onednn\S*=(?!false|0|NONE)", re.IGNORECASE)


def installed(package: str) -> bool:
    """Tell whether a package can be imported."""
    return importlib.util.find_spec(package) is not None


def remark(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return a sentence about the installed frameworks; None if there is none.

    Args:
        environment: The variables by which TensorFlow and XLA are told to use oneDNN or not.
    """
    seen = ["PyTorch"] if installed("torch") else []
    others = []
    for package, name in (("tensorflow", "TensorFlow"), ("jaxlib", "JAX")):
        if installed(package):
            why = _why_not(package, name, environment)
            others += [why] if why else []
            seen += [] if why else [name]
    others += [_MLAS] if installed("onnxruntime") else []
    parts = [f"of {' and '.join(seen)}"] * bool(seen) + others
    return f"calls are seen {'; '.join(parts)}" if parts else None


def _why_not(package: str, name: str, environment: Mapping[str, str]) -> str | None:
    """Return why a framework's calls of oneDNN are not seen, or when; None if all are."""
    if not any(map(has_hidden_setting, _libraries(package))):
        return _STRIPPED.format(name)
    if name == "TensorFlow":
        return _why_not_asked(environment.get("TF_ENABLE_ONEDNN_OPTS", "").lower())
    return None if _ASKED.search(environment.get("XLA_FLAGS", "")) else _XLA


def _why_not_asked(setting: str) -> str | None:
    """Return why TensorFlow calls no oneDNN, by its setting or else by the processor."""
    if setting in ("0", "false"):
        return _OFF
    if setting in ("1", "true") or platform.machine() != "x86_64":
        return None
    flags = re.search(r"^flags\s*:(.*)$", _CPUINFO.read_text(), re.MULTILINE)
    return None if flags is None or _FEATURES & set(flags[1].split()) else _TOO_OLD


def _libraries(package: str) -> Iterator[str]:
    """Yield the files of a package that may hold a oneDNN."""
    found = importlib.util.find_spec(package)
    for folder in (found.submodule_search_locations or ()) if found else ():
        for path in sorted(Path(folder).glob("*.so*")):
            if switch.owner(str(path)) is not None:
                yield str(path)
