"""Observes oneDNN by the lines of its verbose mode: a row for each primitive made or executed."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from xsp.clock import Clock
from xsp.level import Kind, Level
from xsp.provider import Records, Request, SpanRows, no_rows, span_rows
from xsp_levels.library.onednn import switch
from xsp_levels.library.onednn.line import LINE, Header, parse_header, parse_lines
from xsp_levels.library.onednn.switch import OFF, PROFILE, OneDnnLibrary
from xsp_levels.library.onednn.work import formats, work
from xsp_levels.native.stdout_tap import Tap, open_tap

# oneDNN reads a clock of whole microseconds, rounded down: half a microsecond is added, which
# may be wrong either way. The printed double is exact to a quarter of a microsecond.
_HALF_TICK_NS = 500
_PRINTED_NS = 250
_CLOCK_SET_NS = 1_000_000

_NONE = (
    "no oneDNN is loaded in this process; it comes with PyTorch for x86 and ARM (`pip install "
    "xsp[torch]`), with TensorFlow for x86 (`pip install xsp[tensorflow]`), or with a library "
    "that exports dnnl_set_verbose"
)
_SILENT = (
    "{}'s oneDNN was built without its verbose mode (ONEDNN_VERBOSE=OFF). Use a build that has it"
)
_NO_TIMESTAMPS = (
    "oneDNN's calls are missing: it was used in verbose mode before without timestamps, and "
    "reads that setting once; set ONEDNN_VERBOSE_TIMESTAMP=1 before the process starts"
)
_SHARED = (
    "{}: oneDNN prints in every pass, which slows all of them. Its lines while calls are "
    "recorded go into the trace. Unset it to measure."
)
_ON_IN_CODE = "oneDNN's verbose mode was on already"
_NOT_RESTORED = (
    "xsp cannot restore ONEDNN_VERBOSE={} after recording oneDNN's calls: its verbose mode is "
    "off now; times are right. Unset the variable, or set it to 1 or 2."
)
_CLOCK_SET = (
    "someone set the machine's clock by {:.3f} ms while oneDNN's calls were recorded; they may "
    "lie as far from their place. Measure again."
)


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The wall clock and the measurement's clock at one moment.

    Attributes:
        monotonic_ns: Time of the measurement's clock.
        offset_ns: Wall-clock time less monotonic time.
    """

    monotonic_ns: int
    offset_ns: int


@dataclass(frozen=True, slots=True)
class OneDnnRecords:
    """The records of one visit.

    Attributes:
        lines: The lines that oneDNN printed.
        header: oneDNN's header, printed in this visit or an earlier one.
        threads: Count of threads that oneDNN may use; None if unknown.
        readings: The clocks at begin and end of the visit.
    """

    lines: bytes
    header: Header
    threads: int | None
    readings: tuple[ClockReading, ClockReading]


class OneDnn:
    """Observes every copy of oneDNN, in whatever framework."""

    name = "onednn"
    level = Level.LIBRARY
    kinds = frozenset({Kind.CALL})
    record_type = OneDnnRecords | None

    def __init__(self) -> None:
        self._header = Header()
        self._tried = False
        self._useless: str | None = None  # why nothing can be recorded, as the first try told
        self._libraries: tuple[OneDnnLibrary, ...] = ()
        self._clock: Clock | None = None
        self._tap: Tap | None = None
        self._begin = ClockReading(0, 0)
        self._setting = ""
        self._shared = False  # whether the user has the mode on

    def unavailable(self) -> str | None:
        """Return why oneDNN cannot be observed here, or None if it can."""
        if self._useless is not None:
            return self._useless
        if switch.libraries() or installed("torch"):
            return None
        if not installed("tensorflow"):
            return _NONE
        on = switch.prints_anyway(switch.user_setting())
        return None if on else f"calls are not seen of {HIDDEN.format('TensorFlow')}"

    def remark(self) -> str | None:
        """Return of which of the installed frameworks calls are seen, and of which not, and why."""
        return remark()

    def start(self, clock: Clock, request: Request) -> None:
        """Switch the verbose mode on, and take oneDNN's lines from now on."""
        self._clock = clock
        self._libraries = switch.libraries()
        self._setting = switch.user_setting()
        self._shared = self._useless is None and self._try_out()
        if self._useless is not None:
            return
        with ExitStack() as undo, switch.timestamps_asked_for():
            self._tap = open_tap(LINE)
            undo.callback(self._close)
            undo.callback(self._set, OFF)
            self._set(PROFILE)
            self._begin = _reading(clock)
            undo.pop_all()

    def stop(self) -> Records:
        """Switch the verbose mode off, and return the lines that oneDNN printed meanwhile."""
        tap = self._tap
        clock, self._clock = self._clock, None  # which must not outlive the measurement
        if clock is None or tap is None:
            return Records(None, warnings=(self._useless,) if self._useless else ())
        end = _reading(clock)
        try:
            self._set(OFF)
        finally:
            lines, warnings = self._close()
        self._header = parse_header(lines, self._header)
        header = replace(self._header, **_facts(self._libraries, self._header))
        data = OneDnnRecords(lines, header, _threads(self._libraries), (self._begin, end))
        return Records(data, dropped=_dropped(data), warnings=(*warnings, *self._remarks(data)))

    def spans(self, records: Records) -> SpanRows:
        """Turn records into rows: one per primitive executed or created. Pure."""
        data: OneDnnRecords | None = records.data
        if data is None or not data.lines:
            return no_rows()
        calls, _ = parse_lines(data.lines, data.header.fields)
        calls = calls.filter(
            pl.col("wall_us").is_not_null(), ~pl.col("operation").str.ends_with(":cache_hit")
        )
        return _rows(calls, data) if calls.height else no_rows()

    def _set(self, level: int) -> None:
        for library in () if self._shared else self._libraries:
            library.set_verbose(level)

    def _close(self) -> tuple[bytes, tuple[str, ...]]:
        tap, self._tap = self._tap, None
        if tap is None:
            return b"", ()
        taken = tap.close()
        return taken.lines, taken.warnings

    def _try_out(self) -> bool:
        """Return whether the user has the verbose mode on, by environment or in code.

        The first call also finds out whether oneDNN's lines can be used, with a tiny primitive.
        """
        on = switch.prints_anyway(self._setting)
        library = next((each for each in self._libraries if each.try_out), None)
        if library is None or (on and self._tried):
            return on
        first, self._tried = not self._tried, True
        lines = _said(library)
        on = on or b",exec," in lines
        if first:
            if not on:
                self._set(PROFILE)
                try:
                    lines = _said(library)
                finally:
                    self._set(OFF)
            self._judge(lines, library)
        return on

    def _judge(self, lines: bytes, library: OneDnnLibrary) -> None:
        self._header = parse_header(lines, replace(self._header, version=library.version))
        said, _ = parse_lines(lines, self._header.fields)
        if not said.height:
            self._useless = _SILENT.format(library.owner)
        elif said["wall_us"].null_count():
            self._useless = _NO_TIMESTAMPS

    def _remarks(self, data: OneDnnRecords) -> tuple[str, ...]:
        remarks = []
        if self._shared:
            by_environment = switch.prints_anyway(self._setting)
            why = f"ONEDNN_VERBOSE={self._setting} is set" if by_environment else _ON_IN_CODE
            remarks.append(_SHARED.format(why))
        elif not switch.restorable(self._setting):
            remarks.append(_NOT_RESTORED.format(self._setting))
        begin, end = data.readings
        moved = end.offset_ns - begin.offset_ns
        if abs(moved) > _CLOCK_SET_NS:
            remarks.append(_CLOCK_SET.format(moved / 1e6))
        # Nobody misses calls of a library in a program without those that bring it.
        if not self._libraries and "torch" in sys.modules:
            remarks.append(f"oneDNN's calls are missing: {_NONE}")
        if hides_calls():
            remarks.append(f"oneDNN's calls are missing of {HIDDEN.format('TensorFlow')}")
        return tuple(remarks)


def _said(library: OneDnnLibrary) -> bytes:
    """Return the lines that a library prints of a tiny primitive, in its present mode."""
    with switch.timestamps_asked_for():
        tap = open_tap(LINE)
        try:
            if library.try_out is not None:
                library.try_out()
        finally:
            taken = tap.close()
    return taken.lines


def _reading(clock: Clock) -> ClockReading:
    return ClockReading(clock.now(), clock.wall_offset())


def _facts(libraries: Sequence[OneDnnLibrary], header: Header) -> dict[str, Any]:
    """Read version and threads; of several copies each may have its own.

    Lines do not tell which copy printed them.
    """
    if len(libraries) < 2:
        return {"version": libraries[0].version or header.version} if libraries else {}
    versions = sorted({each.version or header.version or "" for each in libraries} - {""})
    return {"version": " or ".join(versions) or None, "threads": None}


def _threads(libraries: Sequence[OneDnnLibrary]) -> int | None:
    """Return how many threads PyTorch's copy may use, where that is the only one."""
    torch = sys.modules.get("torch")
    alone = len(libraries) == 1 and libraries[0].owner == switch.PYTORCH
    return int(torch.get_num_threads()) if torch is not None and alone else None


def _dropped(data: OneDnnRecords) -> int:
    calls, lost = parse_lines(data.lines, data.header.fields)
    return lost + calls["wall_us"].null_count()


def _rows(calls: pl.DataFrame, data: OneDnnRecords) -> SpanRows:
    start, uncertainty_ns = _monotonic(calls["wall_us"] * 1000 + _HALF_TICK_NS, data.readings)
    created = pl.col("operation").str.starts_with("create")
    named = calls.with_columns(
        name=pl.when(created).then("create " + pl.col("primitive")).otherwise("primitive")
    )
    calls = calls.with_columns(pl.col(_DESCRIPTION).fill_null(""))
    version = data.header.version
    described = calls.join(_described(calls), on=_DESCRIPTION, how="left", maintain_order="left")
    executed = ~calls["operation"].str.starts_with("create")
    return span_rows(
        {
            "kind": Kind.CALL.value,
            "name": named["name"],
            "start_ns": start,
            "end_ns": start + calls["duration_us"] * 1000,
            "uncertainty_ns": uncertainty_ns,
            "attr.library": f"oneDNN {version}" if version else "oneDNN",
            "attr.implementation": calls["implementation"],
            "attr.propagation": calls["prop_kind"].replace(["undef", ""], None),
            "attr.formats": described["formats"],
            "attr.algorithm": calls["auxiliary"].replace("", None),
            "attr.problem": calls["problem_desc"].replace("", None),
            "attr.threads": pl.Series(
                [data.threads or data.header.threads], dtype=pl.Int64
            ).new_from_index(0, calls.height),
            "attr.flops": described["flops"].set(~executed, None),
            "attr.tensor_bytes": described["tensor_bytes"].set(~executed, None),
        }
    )


def _monotonic(
    wall_ns: pl.Series, readings: tuple[ClockReading, ClockReading]
) -> tuple[pl.Series, int]:
    """Return times on the measurement's clock, and by how much they may be wrong, in ns.

    While the wall clock is being corrected, the offset between the clocks changes; the
    change is taken to be even over the visit, and counts as uncertainty. Not so if the wall
    clock was set: see `_CLOCK_SET`.
    """
    begin, end = readings
    moved = end.offset_ns - begin.offset_ns
    if abs(moved) > _CLOCK_SET_NS:
        return wall_ns - begin.offset_ns, _HALF_TICK_NS + _PRINTED_NS
    span = max(end.monotonic_ns - begin.monotonic_ns, 1)
    progress = (wall_ns - begin.offset_ns - begin.monotonic_ns) / span
    offset = (progress.clip(0.0, 1.0) * moved).round().cast(pl.Int64) + begin.offset_ns
    return wall_ns - offset, _HALF_TICK_NS + _PRINTED_NS + abs(moved)


_DESCRIPTION = ["primitive", "problem_desc", "memory_descriptors", "auxiliary", "prop_kind"]


def _described(calls: pl.DataFrame) -> pl.DataFrame:
    """Return formats and work of each distinct primitive: far fewer than calls."""
    different = calls.select(_DESCRIPTION).unique()
    lines = different.rows()
    works = [work(*line) for line in lines]
    return different.with_columns(
        formats=pl.Series([formats(line[2]) for line in lines], dtype=pl.String),
        flops=pl.Series([each.flops for each in works], dtype=pl.Int64),
        tensor_bytes=pl.Series([each.tensor_bytes for each in works], dtype=pl.Int64),
    )


# Says of which installed frameworks the calls of oneDNN can be seen. Imports none of them.

HIDDEN = (
    "{}, whose oneDNN has no switch (ONEDNN_VERBOSE=profile_exec and ONEDNN_VERBOSE_TIMESTAMP=1, "
    "set before the process starts, have it print its calls, in every run)"
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
        environment: The variables that tell oneDNN to print, and TensorFlow and XLA to use it.
    """
    seen = ["PyTorch"] if installed("torch") else []
    others = []
    for package, name in (("tensorflow", "TensorFlow"), ("jaxlib", "JAX")):
        if installed(package):
            why = _why_not(name, environment)
            others += [why] if why else []
            seen += [] if why else [name]
    others += [_MLAS] if installed("onnxruntime") else []
    parts = [f"of {' and '.join(seen)}"] * bool(seen) + others
    return f"calls are seen {'; '.join(parts)}" if parts else None


def hides_calls(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether this process uses TensorFlow, and it calls a oneDNN that does not print."""
    asked = environment.get("TF_ENABLE_ONEDNN_OPTS", "").lower()
    on = switch.prints_anyway(switch.user_setting(environment))
    return "tensorflow" in sys.modules and not on and _why_not_asked(asked) is None


def _why_not(name: str, environment: Mapping[str, str]) -> str | None:
    """Return why a framework's calls of oneDNN are not seen, or when; None if all are."""
    if not switch.prints_anyway(switch.user_setting(environment)):
        return f"not of {HIDDEN.format(name)}"
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
