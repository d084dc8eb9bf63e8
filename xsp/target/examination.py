"""Examination: specifications of one target in, an error out where the target cannot take them.

A process of its own looks, as files and libraries are imported for it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from xsp.target.part import attempt
from xsp.target.spec import Spec, check
from xsp.target.worker import FAILURE, SILENCE_S, Failure

_SPECS = "specs.json"


def examine(specs: Sequence[Spec]) -> None:
    """Verify in a fresh process that a target is there and takes all these settings.

    Models are not built, and functions not called; a function's file is imported.

    Raises:
        UnknownTargetError: There is no such target, or it does not take some settings.
        TargetFailedError: The file of a function raised while it was imported.
        MeasurementError: A library or device that the target needs is missing, or the process
            ended.
    """
    with tempfile.TemporaryDirectory(prefix="xsp-") as name:
        folder = Path(name)
        told = json.dumps([spec.to_json() for spec in specs])
        (folder / _SPECS).write_text(told, encoding="utf-8")
        failure = _look(folder)
    if failure is not None:
        raise failure.error()


def _look(folder: Path) -> Failure | None:
    command = [sys.executable, "-P", "-m", "xsp.target", "--examine", str(folder)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SILENCE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Failure("died", f"its import took more than {SILENCE_S:.0f} s and was ended")
    found = folder / FAILURE
    if found.exists():
        return Failure(**json.loads(found.read_text(encoding="utf-8")))
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()[-1000:]
        return Failure("died", f"its process ended with code {done.returncode}: {said}")
    return None


def main(directory: str) -> int:
    """Examine the specifications in a folder, as the process that `examine` starts.

    Returns:
        The exit code: 0, or 1 after a failure, which is written to the folder.
    """
    folder = Path(directory)
    for data in json.loads((folder / _SPECS).read_text(encoding="utf-8")):
        spec = Spec.from_json(data)
        outcome = attempt(partial(check, spec), early=True)
        if isinstance(outcome, Failure):
            (folder / FAILURE).write_text(json.dumps(asdict(outcome)), encoding="utf-8")
            return 1
    return 0
