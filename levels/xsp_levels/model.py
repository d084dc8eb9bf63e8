"""The model level: the user's own spans (`xsp.span`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from xsp import tracer
from xsp.clock import Clock
from xsp.level import Kind, Level
from xsp.provider import ATTRIBUTE, Records, Request, SpanRows, no_rows, pack, span_rows, unpack

# The user's attributes keep out of the way of those that xsp documents.
USER_ATTRIBUTE = f"{ATTRIBUTE}user."

_KEPT = (Records, Kind)
_TYPES = {bool, int, float, str}

_MISSED = (
    "spans marked with xsp.span at the {} level are not in the trace: nothing else is measured at "
    "that level here; mark them at another level, or ask for that one if it was left out"
)


class Model:
    """Records what `xsp.span` marks, at whatever level it is marked."""

    name = "model"
    level = Level.MODEL
    kinds = frozenset({Kind.PIPELINE})

    def __init__(self) -> None:
        self._request = Request(frozenset())

    def unavailable(self) -> str | None:
        """Return None: the user's own spans need nothing."""
        return None

    def start(self, clock: Clock, request: Request) -> None:
        """Record spans of the requested kinds."""
        self._request = request
        tracer.arm(clock, request.kinds)

    def stop(self) -> Records:
        """Stop recording."""
        recorded = tracer.disarm()
        missed = recorded.missed if self._request.deepest else ()
        problems = (
            _MISSED.format(kind.level.label) for kind in sorted(missed, key=list(Kind).index)
        )
        return Records(recorded.records, dropped=recorded.unfinished, problems=tuple(problems))

    def spans(self, records: Records) -> SpanRows:
        """Return one row per span that ended while recording."""
        if not records.data:
            return no_rows()
        width = len(tracer.FIELDS)
        columns = {name: records.data[at::width] for at, name in enumerate(tracer.FIELDS)}
        columns["kind"] = [kind.value for kind in columns["kind"]]
        attributes = columns.pop("attributes")
        errors = columns.pop("error")
        if any(errors):
            columns[f"{ATTRIBUTE}error"] = errors
        return span_rows(columns | _attribute_columns(attributes))

    def pack(self, records: Records) -> bytes:
        """Return records as bytes; what a span's row shows as text, as that text. Pure."""
        plain = [_plain(value) if isinstance(value, Mapping) else value for value in records.data]
        return pack(replace(records, data=plain), _KEPT)

    def unpack(self, content: bytes) -> Records:
        """Return the records that `pack` made bytes of. Pure."""
        records: Records = unpack(content, _KEPT)
        return records


def _plain(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value if value is None or type(value) in _TYPES else str(value)
        for name, value in attributes.items()
    }


def _attribute_columns(attributes: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for some in attributes for name in some)
    return {
        f"{USER_ATTRIBUTE}{name}": _one_type([some.get(name) for some in attributes])
        for name in names
    }


def _one_type(values: list[Any]) -> list[Any]:
    types = {type(value) for value in values if value is not None}
    if len(types) == 1 and types <= _TYPES:
        return values
    return [None if value is None else str(value) for value in values]
