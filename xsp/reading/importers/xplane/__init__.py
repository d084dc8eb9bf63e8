"""Reads `*.xplane.pb` files of TensorFlow's and JAX's profiler as rows.

`xsp.xplane` reads the file. `event` chooses events, `host` and `device` make rows of them, and
`layer` puts TensorFlow's operators in layers, and finds the steps of a JAX program.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from xsp.errors import TraceFormatError
from xsp.level import Kind
from xsp.provider import SpanRows, concat_rows, no_rows, span_rows
from xsp.reading.importers.call import doubled_calls, tied
from xsp.reading.importers.reading import content, listed
from xsp.reading.importers.recording import Contents, Recording
from xsp.reading.importers.source import Source
from xsp.reading.importers.xplane.device import DevicePlane, device_plane, is_device
from xsp.reading.importers.xplane.event import LeftOut, events
from xsp.reading.importers.xplane.host import host_rows
from xsp.reading.importers.xplane.layer import in_layers, program_calls
from xsp.text import counted
from xsp.warning import TraceWarning
from xsp.xplane import (
    Space,
    inputs_of,
    modules,
    operands_of,
    plane_name,
    read_space,
)

_FIRST_PLANES = (b"/host:", b"/device:", b"#Chip", b"Task Environment")  # how their names begin
_HOSTS = ("/host:CPU", "/host:CUPTI", "/host:ROCTRACER")  # planes with the threads of a process
_FACTS = ("/host:metadata", "Task Environment")  # planes without events
_SINCE_1970 = 10**18  # ns; a clock that has such times counts from 1970


@dataclass(frozen=True)
class XPlane:
    """Reads what TensorFlow's and JAX's profiler wrote on a host with CPU, GPUs or TPUs.

    Attributes:
        python: Whether calls of Python functions become operators; else they are left out.
    """

    python: bool = False
    name = "xplane"
    tool = "TensorFlow's or JAX's profiler, *.xplane.pb"

    def recognizes(self, source: Source) -> bool:
        """Tell whether the file begins with a plane that has the name of one."""
        name = plane_name(source.head)
        return name is not None and name.startswith(_FIRST_PLANES)

    def read(self, source: Source) -> Contents:
        """Read the recording of the process.

        Raises:
            TraceFormatError: No plane of the file is whole.
        """
        data, cut = content(source)
        found = read_space(data)
        space = _Space(self.python, len(found.planes), found.hostnames, cut or found.cut)
        space.left.damaged["planes"] += found.damaged
        for plane in found.planes:
            if plane.name in _HOSTS:
                frame = events(plane, space.left, python=space.python)
                space.hosts.append(frame.with_columns(thread="line_id"))
            elif is_device(plane):
                space.devices.append(device_plane(plane, space.left))
            elif plane.name not in _FACTS:
                space.left.unknown[plane.name] += sum(plane.lines["events"].to_list())
            space.stats[plane.name] = plane.stats
        if not space.devices:
            space.programs = _programs(found)
        if space.cut and not space.planes:
            raise TraceFormatError(
                f"{source.path} is cut short or damaged: none of its planes is whole"
            )
        return (_recording(space),)


@dataclass(slots=True)
class _Space:
    """What was read of an XSpace.

    Attributes:
        python: Whether calls of Python functions are read.
        planes: How many planes are whole.
        hostnames: Names of the machines.
        cut: Whether the file ends in the middle.
        hosts: Events of the host's threads, and `thread`, plane by plane.
        devices: What each device did.
        left: What was left out.
        stats: What the planes say of themselves, by the plane's name.
        programs: Operands of XLA's instructions, by module; of files without devices alone.
    """

    python: bool
    planes: int
    hostnames: tuple[str, ...]
    cut: bool
    hosts: list[pl.DataFrame] = field(default_factory=list)
    devices: list[DevicePlane] = field(default_factory=list)
    left: LeftOut = field(default_factory=LeftOut)
    stats: dict[str, dict[str, Any]] = field(default_factory=dict)
    programs: dict[str, dict[str, list[str]]] = field(default_factory=dict)


def _recording(space: _Space) -> Recording:
    rows, steps = no_rows(), no_rows()
    if space.hosts:
        # The names of the operators of XLA that kernels say they are of.
        told = (
            each.rows["attr.hlo_op"] for each in space.devices if "attr.hlo_op" in each.rows.columns
        )
        hlo_ops = frozenset(name for names in told for name in names.drop_nulls().unique())
        rows, steps = host_rows(pl.concat(space.hosts), hlo_ops, space.left)
        if space.programs and rows.height:
            keys = rows.select("attr.hlo_module", "attr.hlo_op")
            rows = rows.with_columns(inputs_of(keys, space.programs))
        rows = in_layers(rows, steps)
    launched = (rows["kind"] == Kind.LAUNCH.value).any()
    if not (steps.height or launched):
        steps = _device_steps(space.devices)
    if not steps.height:
        steps = program_calls(rows)
    tied_rows, doubled = tied(concat_rows([rows, *(device.rows for device in space.devices)]))
    facts = space.stats.get("/host:metadata", {})
    version = facts.get("jax_version")
    # The wall-clock time at time 0 of the rows.
    starts = [frame["start_ns"].min() for frame in (rows, *(each.rows for each in space.devices))]
    known = [start for start in starts if isinstance(start, int)]
    unix_ns: int | None
    if known and min(known) > _SINCE_1970:
        unix_ns = 0
    else:
        began = space.stats.get("Task Environment", {}).get("profile_start_time")
        unix_ns = began if isinstance(began, int) else None
    return Recording(
        tool=f"JAX's profiler {version}" if version else "TensorFlow's or JAX's profiler",
        rows=tied_rows,
        roots=steps,
        warnings=(*_warnings(space), *doubled_calls(doubled)),
        environment=_environment(space, facts),
        unix_ns=unix_ns,
        host=space.hostnames[0] if space.hostnames else "",
    )


def _programs(space: Space) -> dict[str, dict[str, list[str]]]:
    """Return the operands of each instruction; without programs of which several bear one name."""
    found = list(modules(space))
    names = Counter(module.name for module in found)
    return {each.name: operands_of(each) for each in found if names[each.name] == 1}


def _device_steps(devices: list[DevicePlane]) -> SpanRows:
    """Return the steps that devices mark, each from its first beginning to its last end."""
    marked = pl.concat([device.steps for device in devices]) if devices else pl.DataFrame()
    if not marked.height:
        return no_rows()
    steps = marked.group_by("name").agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    steps = steps.sort("start_ns")
    return span_rows(
        {
            "kind": Kind.REGION.value,
            "name": "step " + steps["name"],
            "start_ns": steps["start_ns"],
            "end_ns": steps["end_ns"],
        }
    )


def _environment(space: _Space, facts: dict[str, Any]) -> dict[str, Any]:
    named = {
        name: stats for name, stats in space.stats.items() if name.startswith("/device:") and stats
    }
    devices = [_device_name(name, stats) for name, stats in sorted(named.items())]
    versions = {
        key.removesuffix("_version"): str(value)
        for key, value in facts.items()
        if key.endswith("_version")
    }
    found = {
        "devices": devices,
        "versions": versions,
        "host": space.hostnames[0] if space.hostnames else "",
    }
    return {key: value for key, value in found.items() if value}


def _device_name(plane: str, stats: dict[str, Any]) -> str:
    """Name a device by its facts: the file names none.

    >>> _device_name("/device:GPU:0", {"core_count": 80, "memory_size": 17 * 10**9})
    'GPU 0 (80 cores, 17 GB)'
    """
    name = " ".join(plane.removeprefix("/device:").split(":"))
    kind = stats.get("device_type_string") or stats.get("device_vendor") or ""
    cores, memory = stats.get("core_count"), stats.get("memory_size")
    known = [f"{cores} cores"] if isinstance(cores, int) else []
    known += [f"{memory / 1e9:.0f} GB"] if isinstance(memory, int) else []
    return f"{kind} {name} ({', '.join(known)})".strip() if known else f"{kind} {name}".strip()


def _warnings(space: _Space) -> Iterator[TraceWarning]:
    left = space.left
    if space.cut:
        yield TraceWarning(
            "cut-short",
            "the file ends in the middle of a plane: xsp read "
            f"{counted(space.planes, 'whole plane')}, "
            "the rest is missing. Record again.",
        )
    if +left.damaged:
        yield TraceWarning("damaged", f"damaged and left out: {listed(+left.damaged)}")
    if unknown := +left.unknown:  # lines without events are not worth a word
        yield TraceWarning(
            "not-understood", f"xsp does not show these planes and lines: {listed(unknown)}"
        )
    if left.python:
        yield TraceWarning(
            "python-functions",
            f"{counted(left.python.total(), 'call')} of Python functions are left out",
        )
    if left.marks:
        yield TraceWarning(
            "marks-left-out", f"events without a duration are left out: {listed(left.marks)}"
        )
    if left.sums:
        yield TraceWarning(
            "sums-left-out", f"sums of events without times are left out: {listed(left.sums)}"
        )
    if left.outer:
        yield TraceWarning(
            "self-time-alone",
            "device operators that hold others are shown by their self time alone, so that no time "
            f"counts twice: {listed(left.outer)}",
        )
