"""Metadata: parsed JSON in, nothing out, or an error that names the entry of a wrong type.

docs/trace.md documents the types; entries that are not documented may be of any type.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Annotated, Any

import msgspec

from xsp.errors import TraceFormatError

# A signed integer of OTLP and Parquet.
Integer = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
# Up to the year 2116, so that the sum with a span's time from the root's start fits as well.
UnixNanoseconds = Annotated[int, msgspec.Meta(ge=0, le=2**62)]

_DEEPEST = 64  # nested objects and lists; xsp's own metadata has four


class _Problem(msgspec.Struct):
    code: str
    message: str


class _Rung(msgspec.Struct):
    rung: str
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
    os: str | None = None
    python: str | None = None
    python_implementation: str | None = None
    versions: dict[str, str] = {}
    threads: dict[str, Integer | str | None] = {}
    gpus: tuple[dict[str, str], ...] = ()


class _Metadata(msgspec.Struct):
    format: Integer
    xsp_version: str | None = None
    created: str | None = None
    name: str | None = None
    problems: tuple[_Problem, ...] = ()
    levels: dict[str, str] = {}
    rungs: tuple[_Rung, ...] = ()
    plan: dict[str, Any] = {}
    environment: _Environment = msgspec.field(default_factory=_Environment)
    began_unix_ns: UnixNanoseconds | None = None
    traceparent: str | None = None
    tracestate: str | None = None


def check(metadata: Mapping[str, Any]) -> None:
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
