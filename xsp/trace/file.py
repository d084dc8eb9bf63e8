"""Writes spans, metadata and typical runs to one Parquet file, and reads them back.

docs/trace.md documents the types of the metadata; other entries may be of any type.
"""

from __future__ import annotations

import base64
import io
import os
import zipfile
import zlib
from collections.abc import Mapping
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import msgspec
import polars as pl

from xsp.errors import TraceFormatError
from xsp.machine import replacing
from xsp.provider import READING_SCHEMA
from xsp.trace.integrity import RUN_SCHEMA, check_run_columns

# Raised by polars and Python on a damaged Parquet file; a PanicException is no `Exception`.
DAMAGE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError)

_KEY = "xsp"
_RUNS = "xsp.runs"
_READINGS = "xsp.readings"
_CHECKSUM = "xsp.checksum"
# Zeros that stand for the checksum while it is computed: BLAKE2b of the whole file in
# hexadecimal. A checksum of bytes does not depend on the version of polars that wrote them.
_BLANK = "0" * 32
# Bytes before the checksum in Parquet's footer: its key, then field and length of the value in
# Thrift's compact protocol. No JSON text contains these bytes.
_MARK = _CHECKSUM.encode() + bytes((0x18, len(_BLANK)))
_MAGIC = b"PAR1"
_ZIP = b"PK\3\4"
_RECORDED = "manifest.json"  # what `xsp record` writes into each of its archives
_SMALLEST = 12  # bytes: magic at both ends, and the length of the footer

# A signed integer of OTLP and Parquet.
Integer = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
# Up to the year 2116, so that the sum with a span's time from the root's start fits as well.
UnixNanoseconds = Annotated[int, msgspec.Meta(ge=0, le=2**62)]

_DEEPEST = 64  # nested objects and lists; xsp's own metadata has four


def write_file(
    spans: pl.DataFrame, metadata: str, path: Path, *, runs: str = "", readings: str = ""
) -> Path:
    """Write spans and metadata (JSON) to `path`, whole or not at all.

    Args:
        spans: The table.
        metadata: JSON text, written under the key `xsp`.
        path: The file.
        runs: Text of the typical runs (`pack_runs`), written under the key `xsp.runs`.
        readings: Text of the readings (`pack_runs`), written under the key `xsp.readings`.

    Raises:
        ExportError: The file could not be written; nothing is left behind.
    """
    more = {key: text for key, text in ((_RUNS, runs), (_READINGS, readings)) if text}
    texts = {_KEY: metadata, _CHECKSUM: _BLANK} | more
    buffer = io.BytesIO()
    spans.write_parquet(buffer, metadata=texts)
    content = buffer.getbuffer()
    # The footer is last: a span's name that looks like the mark stands before it.
    place = buffer.getvalue().rindex(_MARK) + len(_MARK)
    content[place : place + len(_BLANK)] = _checksum(content).encode()
    with replacing(path) as file:
        file.write(content)
    return path


def read_file(path: Path) -> tuple[pl.DataFrame, str, str, str]:
    """Return the spans of a file, its metadata as JSON, and texts of typical runs and readings.

    Raises:
        TraceFormatError: The file is damaged or not a trace.
        OSError: The file cannot be opened.
    """
    # Both ends are checked before a file that may be huge is read whole.
    with path.open("rb") as file:
        _check_ends(path, file)
        content = file.read()
    _check_sum(path, content)
    # polars gets the content, not the name: `[` and `*` in a name would be a pattern.
    buffer = io.BytesIO(content)
    try:
        texts = pl.read_parquet_metadata(buffer)
        metadata = texts.get(_KEY)
        buffer.seek(0)
        # A Parquet file that is no trace may be huge: its columns are not read.
        spans = pl.read_parquet(buffer) if metadata is not None else pl.DataFrame()
    except DAMAGE as error:
        raise TraceFormatError(
            f"{path} is damaged and cannot be read ({error}). Copy it again, or measure again."
        ) from error
    if metadata is None:
        raise TraceFormatError(
            f"{path} is a Parquet file but not a trace: open files that trace.save() wrote"
        )
    return spans, metadata, texts.get(_RUNS, ""), texts.get(_READINGS, "")


def is_own(path: Path) -> bool:
    """Tell whether a file begins as traces of xsp do, or holds its raw records (`xsp record`).

    No folder does.

    Raises:
        OSError: The file cannot be opened.
    """
    if path.is_dir():
        return False
    with path.open("rb") as file:
        begin = file.read(len(_MAGIC))
    return begin == _MAGIC or (begin == _ZIP and _holds_records(path))


def _holds_records(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return _RECORDED in archive.namelist()
    except (zipfile.BadZipFile, OSError):
        return False


def pack_runs(runs: pl.DataFrame) -> str:
    """Return typical runs, or readings, as text for a file; empty for no rows.

    The text is a checksum and the base64 of a Parquet file, as Parquet's key-value metadata
    must be text. An Arrow file would not do: a damaged one makes polars abort the process.
    """
    if not runs.height:
        return ""
    buffer = io.BytesIO()
    runs.write_parquet(buffer)
    content = buffer.getbuffer()
    return f"{zlib.crc32(content):08x} {base64.b64encode(content).decode('ascii')}"


def unpack_runs(text: str) -> pl.DataFrame:
    """Return the typical runs of a text that `pack_runs` returned.

    Raises:
        TraceFormatError: The text is damaged.
    """
    if not text:
        return pl.DataFrame(schema=RUN_SCHEMA)
    runs = _unpacked(text, "typical runs")
    check_run_columns(runs)
    return runs


def unpack_readings(text: str) -> pl.DataFrame:
    """Return the readings of a text that `pack_runs` returned.

    Raises:
        TraceFormatError: The text is damaged.
    """
    if not text:
        return pl.DataFrame(schema=READING_SCHEMA)
    readings = _unpacked(text, "readings")
    if readings.schema != pl.Schema(READING_SCHEMA):
        raise _damaged("readings", "its columns are others")
    return readings


def _unpacked(text: str, what: str) -> pl.DataFrame:
    checksum, _, encoded = text.partition(" ")
    try:
        content = base64.b64decode(encoded, validate=True)
        if f"{zlib.crc32(content):08x}" != checksum:
            raise _damaged(what, "its checksum is another")
        return pl.read_parquet(io.BytesIO(content))
    except DAMAGE as error:
        raise _damaged(what, error) from error


def _check_sum(path: Path, content: bytes) -> None:
    """Verify the checksum of a file, as damaged bytes could make polars panic.

    Files of earlier versions have no checksum.
    """
    place = content.rfind(_MARK)
    if place < 0:
        return
    whole, begin = bytearray(content), place + len(_MARK)
    end = begin + len(_BLANK)
    whole[begin:end] = _BLANK.encode()
    if _checksum(whole).encode() != content[begin:end]:
        raise TraceFormatError(
            f"{path} is damaged: its checksum does not match. Copy it again, or measure again."
        )


def _checksum(content: bytes | bytearray | memoryview) -> str:
    return blake2b(content, digest_size=len(_BLANK) // 2).hexdigest()


def _check_ends(path: Path, file: io.BufferedReader) -> None:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if size == 0:
        raise TraceFormatError(f"{path} is empty, not a trace: measure again and save it")
    begin = file.read(4)
    if begin == _ZIP:
        raise TraceFormatError(f"{path} is a recording: xsp.testing.replay makes its trace")
    if begin != _MAGIC:
        raise TraceFormatError(
            f"{path} is not a trace: open files that trace.save() wrote; recordings of other "
            f"tools are read by xsp.read({str(path)!r})"
        )
    # A copy that was cut short lacks the magic at its end.
    file.seek(-min(size, 4), os.SEEK_END)
    if size < _SMALLEST or file.read(4) != _MAGIC:
        raise TraceFormatError(f"{path} ends too early. Copy it again, or measure again.")
    file.seek(0)


def _damaged(what: str, reason: object) -> TraceFormatError:
    return TraceFormatError(
        f"The {what} in this trace are damaged, and only they are ({reason}). Copy the "
        "file again, or measure again."
    )


class _Warning(msgspec.Struct):
    code: str
    message: str


class _Pass(msgspec.Struct, rename={"name": "pass"}):  # a keyword of Python
    name: str
    runs: Integer | None = None
    latency_ns: float | None = None
    latency_low_ns: float | None = None
    latency_high_ns: float | None = None
    overhead_ns: float | None = None
    spans: Integer | None = None
    cost_per_span_ns: float | None = None
    cost_per_span_low_ns: float | None = None
    cost_per_span_high_ns: float | None = None
    inside_cost_ns: float | None = None


class _Environment(msgspec.Struct):
    host: str | None = None
    host_id: str | None = None
    pid: Integer | None = None
    executable: str | None = None
    machine: str | None = None
    cpu: str | None = None
    cores: Integer | None = None
    logical_cores: Integer | None = None
    usable_cores: float | None = None
    memory_bytes: Integer | None = None
    available_memory_bytes: Integer | None = None
    peak_memory_bytes: Integer | None = None
    peak_device_memory_bytes: Integer | None = None
    os: str | None = None
    python: str | None = None
    python_implementation: str | None = None
    versions: dict[str, str] = {}
    threads: dict[str, Integer | str | None] = {}
    gpus: tuple[dict[str, str], ...] = ()


class _Size(msgspec.Struct):
    shapes: tuple[str, ...] = ()
    calls: Integer | None = None
    latency_ns: float | None = None


class _Group(msgspec.Struct):
    name: str
    model: str | None = None
    phase: str | None = None
    variant: str | None = None
    shapes: tuple[str, ...] = ()
    calls: Integer | None = None
    repeated: Integer | None = None
    samples: Integer | None = None
    total_ns: float | None = None
    latency_ns: float | None = None
    latency_low_ns: float | None = None
    latency_high_ns: float | None = None
    passes: tuple[_Pass, ...] = ()
    sizes: tuple[_Size, ...] = ()


class _Metadata(msgspec.Struct):
    format: Integer
    xsp_version: str | None = None
    created: str | None = None
    name: str | None = None
    warnings: tuple[_Warning, ...] = ()
    levels: dict[str, str] = {}
    passes: tuple[_Pass, ...] = ()
    groups: tuple[_Group, ...] = ()
    summary: tuple[str, ...] = ()
    made_of: dict[str, str] = {}
    plan: dict[str, Any] = {}
    settings: dict[str, Integer | float | str | bool] = {}
    environment: _Environment = msgspec.field(default_factory=_Environment)
    began_unix_ns: UnixNanoseconds | None = None
    traceparent: str | None = None
    tracestate: str | None = None


def check_metadata(metadata: Mapping[str, Any]) -> None:
    """Verify that every entry of a trace's metadata is of its documented type.

    Args:
        metadata: Metadata as `json.loads` returns it.

    Raises:
        TraceFormatError: An entry is of another type; the message names the entry.
    """
    try:
        created = msgspec.convert(metadata, _Metadata).created
        if created is not None:
            datetime.fromisoformat(created)
    except ValueError as error:  # msgspec's ValidationError is one, and names the entry
        raise TraceFormatError(
            f"the metadata is damaged or was put together wrongly: {error}"
        ) from error


def frozen(value: Any, depth: int = 0) -> Any:
    """Return a value of `json.loads` with read-only mappings, and tuples for lists.

    Raises:
        TraceFormatError: The value is nested so deep that readers would fail.
    """
    if depth > _DEEPEST:
        raise TraceFormatError(f"the metadata is nested more than {_DEEPEST} deep")
    if isinstance(value, dict):
        return MappingProxyType({key: frozen(item, depth + 1) for key, item in value.items()})
    if isinstance(value, list):
        return tuple(frozen(item, depth + 1) for item in value)
    return value
