"""Makes rows of launches, library calls and ranges on the host's threads."""

from __future__ import annotations

from xsp.level import Kind
from xsp.provider import SpanRows, concat_rows, no_rows, span_rows
from xsp.reading.importers.rocm import range_columns
from xsp.reading.importers.rocprofv3.message import Timed
from xsp.reading.importers.rocprofv3.process import Records, times
from xsp.text import call_name

_LAUNCHES = ("hip_api", "hsa_api")
_LIBRARIES = {"rccl_api": "RCCL", "rocdecode_api": "rocDecode", "rocjpeg_api": "rocJPEG"}


def host_rows(records: Records) -> SpanRows:
    """Return calls of HIP and HSA as launches, calls of libraries, and ranges of roctx."""
    return concat_rows(
        [
            _ranges(records),
            *(_launches(records, name) for name in _LAUNCHES),
            *(_library_calls(records, name) for name in _LIBRARIES),
        ]
    )


def _launches(records: Records, sort: str) -> SpanRows:
    calls = records.sound(sort, Timed)
    if not calls:
        return no_rows()
    return span_rows(
        {
            "kind": Kind.LAUNCH.value,
            "name": [call_name(name) for name in records.operations(calls)],
            **times(calls),
            "thread": [each.thread_id for each in calls],
            "correlation_id": [each.correlation_id.internal for each in calls],
        }
    )


def _library_calls(records: Records, sort: str) -> SpanRows:
    calls = records.sound(sort, Timed)
    if not calls:
        return no_rows()
    return span_rows(
        {
            "kind": Kind.CALL.value,
            "name": records.operations(calls),
            **times(calls),
            "thread": [each.thread_id for each in calls],
            "attr.library": _LIBRARIES[sort],
        }
    )


def _ranges(records: Records) -> SpanRows:
    """Return ranges of roctx; marks, and calls that only control the tool, are counted."""
    markers = records.sound("marker_api", Timed)
    texts = {each.key: each.value for each in records.process.strings.marker_api}
    kept, said = [], []
    for marker, operation in zip(markers, records.operations(markers), strict=True):
        text = texts.get(marker.correlation_id.internal)
        if "Mark" in operation:
            records.marks["roctx"] += 1
        elif text is None:
            records.left[f"marker_api {operation}"] += 1
        else:
            kept.append(marker)
            said.append(text)
    if not kept:
        return no_rows()
    return span_rows(
        {**range_columns(said), **times(kept), "thread": [each.thread_id for each in kept]}
    )
