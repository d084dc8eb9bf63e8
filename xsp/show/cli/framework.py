"""Finds how each installed framework computes on this machine.

Each is imported in a process of its own, all at once: an import takes seconds, and would stay.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

# What starts each framework, by the package that must be installed.
_STARTS = {
    "torch": "import torch",
    "tensorflow": "import tensorflow",
    "keras": "import keras",
    "jax": "import jax; jax.devices()",
    "onnxruntime": "import onnxruntime",
}
_TELL = (
    "import json; from xsp.record.session import describe_frameworks; print(json.dumps("
    "describe_frameworks()))"
)
_PATIENCE_S = 120.0


def started_frameworks(versions: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Import each installed framework, and return how it computes here, by its name.

    A framework that cannot be imported has the fact `failed`, with the reason.

    Args:
        versions: Versions of the packages that are installed.
    """
    processes = {
        name: subprocess.Popen(
            [sys.executable, "-P", "-c", f"{start}; {_TELL}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name, start in _STARTS.items()
        if name in versions
    }
    return {name: _told(name, process) for name, process in processes.items()}


def _told(name: str, process: subprocess.Popen[str]) -> dict[str, Any]:
    try:
        out, err = process.communicate(timeout=_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {"failed": f"its import took more than {_PATIENCE_S:.0f} s"}
    if process.returncode:
        last = err.strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
        return {"failed": last[0]}
    found: dict[str, dict[str, Any]] = json.loads(out.splitlines()[-1])
    return found.get(name, {})


def in_words(facts: Mapping[str, Any]) -> str:
    """Return how a framework computes, in words.

    >>> in_words({"threads": 2, "onednn": True, "providers": ["CPU"]})
    'threads 2, with oneDNN, providers CPU'
    """
    if "failed" in facts:
        return f"cannot be imported: {facts['failed']}"
    return ", ".join(_words(name, value) for name, value in facts.items()) or "works"


def _words(name: str, value: Any) -> str:
    called = {"onednn": "oneDNN"}.get(name, name.replace("_", " "))
    if isinstance(value, bool):
        return f"{'with' if value else 'without'} {called}"
    return f"{called} {' '.join(map(str, value)) if isinstance(value, list) else value}"
