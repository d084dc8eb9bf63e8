"""Rows of results: a point and its trace, or what prevented one, in; values by column out."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from xsp import __version__
from xsp.session import host_id
from xsp.sweep import Point
from xsp.trace import Trace
from xsp.zoo.results.basis import machine_of, text_of
from xsp.zoo.results.column import FACT, SET, Row
from xsp.zoo.results.measured import measured_of
from xsp.zoo.results.table import MEASURED
from xsp.zoo.task import Task

_SETTINGS = ("batch", "threads", "framework", "precision", "compiled", "device", "train")
_FACTS = ("accuracy_pct", "family", "zoo")


def row_of(
    task: Task, point: Point, trace: Trace, *, took_s: float, basis: Mapping[str, str]
) -> Row:
    """Return the row of a point that was measured, with what the analyses say of its trace.

    Args:
        task: The task that the point is of.
        point: The point.
        trace: Its trace.
        took_s: Seconds that the measurement took until now, loading included.
        basis: What the result rests on beside its settings, as `xsp.sweep.basis_of` returns it.
    """
    environment = trace.metadata.get("environment") or {}
    return {
        **_common(task, point, took_s, basis),
        "status": MEASURED,
        "problems": [problem.message for problem in trace.problems],
        "problem_codes": [problem.code for problem in trace.problems],
        **measured_of(trace),
        **_place(environment),
    }


def row_without(  # what is known of a point without a trace
    task: Task,
    point: Point,
    status: str,
    reason: str,
    *,
    took_s: float | None,
    basis: Mapping[str, str],
) -> Row:
    """Return the row of a point that has no trace.

    Args:
        task: The task that the point is of.
        point: The point.
        status: `out-of-memory`, `time-out`, `crashed`, `failed`, or `skipped`.
        reason: What happened, for people.
        took_s: Seconds until it happened; None where nothing was started.
        basis: What the result rests on beside its settings, as `xsp.sweep.basis_of` returns it.
    """
    return {**_common(task, point, took_s, basis), "status": str(status), "reason": reason}


def facts_of(task: Task) -> Row:
    """Return what the zoo says of a task's model, by column."""
    return {name if name in _FACTS else f"{FACT}{name}": fact for name, fact in task.facts.items()}


def is_fact(column: str) -> bool:
    """Return whether a column has what the zoo says of models."""
    return column in _FACTS or column.startswith(FACT)


def _common(task: Task, point: Point, took_s: float | None, basis: Mapping[str, str]) -> Row:
    settings: dict[str, Any] = dict(point.settings)
    more = {f"{SET}{name}": value for name, value in settings.items() if name not in _SETTINGS}
    started = datetime.now(UTC) - timedelta(seconds=took_s or 0.0)
    return {
        "model": task.model,
        "target": point.spec.target,
        **facts_of(task),
        **{name: settings.get(name) for name in _SETTINGS},
        "train": bool(settings.get("train")),
        "settings": point.key,
        **more,
        "took_s": took_s,
        "started": started.isoformat(timespec="seconds"),
        **_place_of(basis),
        "xsp_version": __version__,
        "basis": text_of(basis),
    }


def _place_of(basis: Mapping[str, str]) -> Row:
    """Return what a basis tells of the machine."""
    gpus = [fact for name, fact in basis.items() if name.startswith("GPU ")]
    cores = basis.get("usable cores")
    here = basis.get("host id") == host_id()
    return {
        "host": platform.node() if here else None,
        "machine": machine_of(basis),
        "cpu": basis.get("cpu"),
        "cores": float(cores) if cores else None,
        "gpu": ", ".join(dict.fromkeys(gpus)) or None,
    }


def _place(environment: Mapping[str, Any]) -> Row:
    """Return what a trace tells of the machine, as far as it does."""
    found = {"host": environment.get("host"), "cpu": environment.get("cpu")}
    found["cores"] = environment.get("usable_cores")
    gpus = [gpu["name"] for gpu in environment.get("gpus") or ()]
    found["gpu"] = ", ".join(dict.fromkeys(gpus)) or None
    if known := environment.get("host_id"):
        found["machine"] = machine_of({"host id": known})
    return {name: value for name, value in found.items() if value is not None}
