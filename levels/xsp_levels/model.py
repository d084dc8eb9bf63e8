"""Records the spans that the user marks with `xsp.span`, one row per span."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from xsp import tracer
from xsp.clock import Clock
from xsp.level import Kind, Level
from xsp.provider import ATTRIBUTE, EmptySpan, Records, Request, SpanRows, no_rows, span_rows

# In front of the names of the user's attributes, so that none has the name of xsp's own.
USER_ATTRIBUTE = f"{ATTRIBUTE}user."

Value = bool | int | float | str | None
_TYPES = {bool, int, float, str}
_LARGEST = 1 << 63  # a column of 64-bit integers holds smaller values only

_MISSED = (
    "the trace lacks spans marked with xsp.span at the {} level, because nothing else is "
    "measured there. Mark them at another level, or ask for that one."
)


@dataclass(frozen=True, slots=True)
class ModelRecords:
    """The spans that ended during one visit, as columns: the fields of `tracer.FIELDS`.

    Attributes:
        name: The span's name, as given to `xsp.span`.
        kind: The kind that spans of the marked level have.
        start_ns: When the span began.
        end_ns: When the span ended.
        thread: `threading.get_ident()`.
        id: The span's number.
        parent_id: Number of the marked span around this span; None if there is none.
        error: Class of the exception that left the span; None without an exception.
        attributes: Further arguments of `xsp.span`; of any type until `Model.plain` is called.
    """

    name: list[str] = field(default_factory=list)
    kind: list[Kind] = field(default_factory=list)
    start_ns: list[int] = field(default_factory=list)
    end_ns: list[int] = field(default_factory=list)
    thread: list[int] = field(default_factory=list)
    id: list[int] = field(default_factory=list)
    parent_id: list[int | None] = field(default_factory=list)
    error: list[str | None] = field(default_factory=list)
    attributes: Sequence[Mapping[str, Value]] = field(default_factory=list)


class Model:
    """Records the spans that `xsp.span` marks, of every level."""

    name = "model"
    level = Level.MODEL
    kinds = frozenset({Kind.REGION})
    record_type = ModelRecords

    def __init__(self) -> None:
        self._request = Request(frozenset())

    def unavailable(self) -> str | None:
        """Return None: spans of the user can be recorded on any machine."""
        return None

    def start(self, clock: Clock, request: Request) -> None:
        """Record spans of the requested kinds."""
        self._request = request
        tracer.arm(clock, request.kinds)

    def stop(self) -> Records:
        """Stop recording."""
        recorded = tracer.disarm()
        missed = recorded.missed if self._request.deepest else ()
        warnings = (
            _MISSED.format(kind.level.label) for kind in sorted(missed, key=list(Kind).index)
        )
        width = len(tracer.FIELDS)
        columns = {name: recorded.records[at::width] for at, name in enumerate(tracer.FIELDS)}
        return Records(
            ModelRecords(**columns), dropped=recorded.unfinished, warnings=tuple(warnings)
        )

    def spans(self, records: Records) -> SpanRows:
        """Return one row per span that ended while recording."""
        data: ModelRecords = records.data
        if not data.name:
            return no_rows()
        columns: dict[str, Any] = {
            "kind": [kind.value for kind in data.kind],
            "name": data.name,
            "start_ns": data.start_ns,
            "end_ns": data.end_ns,
            "thread": data.thread,
            "id": data.id,
            "parent_id": data.parent_id,
        }
        if any(data.error):
            columns[f"{ATTRIBUTE}error"] = data.error
        names = dict.fromkeys(name for some in data.attributes for name in some)
        attribute_columns = {
            f"{USER_ATTRIBUTE}{name}": _one_type([some.get(name) for some in data.attributes])
            for name in names
        }
        return span_rows(columns | attribute_columns)

    def empty_span(self, kind: Kind) -> EmptySpan | None:
        """Return an empty `with` block, which takes no more than two readings of the clock."""
        block = tracer.span("empty", kind.level)

        def make() -> None:
            with block:
                pass

        return EmptySpan(block.name, make, bare=None) if block.kind == kind else None

    def plain(self, records: Records) -> Records:
        """Return the same records, attributes of any other type than `Value` made texts. Pure."""
        data: ModelRecords = records.data
        attributes = [_plain(each) for each in data.attributes]
        return replace(records, data=replace(data, attributes=attributes))


def _plain(attributes: Mapping[str, Any]) -> dict[str, Value]:
    return {
        name: value if value is None or _fits(value) else str(value)
        for name, value in attributes.items()
    }


def _fits(value: Any) -> bool:
    if type(value) is int:
        return -_LARGEST <= value < _LARGEST
    return type(value) in _TYPES


def _one_type(values: list[Any]) -> list[Any]:
    types = {type(value) for value in values if value is not None}
    if len(types) == 1 and types <= _TYPES:
        return values
    return [None if value is None else str(value) for value in values]
