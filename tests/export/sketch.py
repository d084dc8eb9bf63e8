"""Pictures drawn by hand, and what is told of each span, for the tests of the formats."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import polars as pl
from hypothesis import settings
from hypothesis import strategies as st

from xsp.show.export import label
from xsp.show.export.picture import LINK_SCHEMA, SPAN_SCHEMA, Picture, Service, Slice

TYPES: dict[str, Any] = {
    "xsp.text": pl.String,
    "xsp.count": pl.Int64,
    "xsp.size": pl.Float64,
    "xsp.exact": pl.Boolean,
    "xsp.list": pl.List(pl.String),
    'odd "name"': pl.String,
}
TRACE_ID = bytes.fromhex("00112233445566778899aabbccddeeff")
OTHER_TRACE = bytes.fromhex("ffeeddccbbaa99887766554433221100")
SERVICES = (
    Service("model", {"service.name": "model", "host.id": "h", "process.pid": 2**62}),
    Service("framework", {"service.name": "framework", "a.list": ["x", "y"], "load": 0.5}),
)


@dataclass(frozen=True)
class Told:
    """A span as any format tells it; numbers that are no numbers compare as their text."""

    span_id: int
    parent_id: int
    service: str
    name: str
    start_ns: int
    end_ns: int
    error: str | None
    attributes: dict[str, Any]
    events: tuple[tuple[int, str, str], ...] = ()
    links: tuple[tuple[bytes, int, str], ...] = ()


@dataclass
class Sketch:
    """Stands for a `Picture`: the spans as told, handed over in slices of any length."""

    spans: list[Told]
    services: tuple[Service, ...] = SERVICES
    trace_id: bytes = TRACE_ID
    trace_state: str = ""
    rows: int = 8192
    asked: list[int] = field(default_factory=list)

    @property
    def height(self) -> int:
        return len(self.spans)

    def slices(self, rows: int = 8192) -> Iterator[Slice]:
        self.asked.append(rows)
        rows = min(rows, self.rows)
        for first in range(0, self.height, rows):
            yield self._slice(self.spans[first : first + rows])

    def _slice(self, spans: list[Told]) -> Slice:
        numbers = {service.name: at for at, service in enumerate(self.services)}
        fixed = [
            (s.span_id, s.parent_id, numbers[s.service], s.name, s.start_ns, s.end_ns, s.error)
            for s in spans
        ]
        columns = [
            pl.Series(f"attr.{name}", [s.attributes.get(name) for s in spans], dtype=dtype)
            for name, dtype in TYPES.items()
        ]
        events = [(row, *event) for row, s in enumerate(spans) for event in s.events]
        links = [(row, *link) for row, s in enumerate(spans) for link in s.links]
        return Slice(
            pl.DataFrame(fixed, schema=SPAN_SCHEMA, orient="row").hstack(columns),
            pl.DataFrame(events, schema=label.EVENT_SCHEMA, orient="row"),
            pl.DataFrame(links, schema=LINK_SCHEMA, orient="row"),
        )


def picture(*spans: Told, **more: Any) -> Picture:
    return cast(Picture, Sketch(list(spans), **more))


def told(span_id: int = 1, parent_id: int = 0, **more: Any) -> Told:
    known: dict[str, Any] = {
        "service": "model",
        "name": f"span {span_id}",
        "start_ns": 1_700_000_000_000_000_000 + span_id,
        "end_ns": 1_700_000_000_000_001_000 + span_id,
        "error": None,
        "attributes": {},
    }
    return Told(span_id, parent_id, **{**known, **more})


def comparable(value: Any) -> Any:
    """Return a value that equals itself, NaN included, and differs where its type does."""
    if isinstance(value, (list, tuple)):
        return [comparable(item) for item in value]
    return (type(value).__name__, repr(value))


def told_attributes(span: Told) -> dict[str, Any]:
    return {key: comparable(value) for key, value in span.attributes.items()}


# A picture is many draws: as many of them as take a second or two.
some = settings(max_examples=20, deadline=None)

NASTY = st.sampled_from(
    [
        '"',
        '\\"',
        "\\",
        "a\nb\x00",
        "}{][",
        '{"startTime":1',
        "Ω\u2028\x7f",
        "😀",
        "</script>",
        "x" * 9,
    ]
)
TEXTS = st.one_of(st.text(max_size=12), NASTY)
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "xsp.text": TEXTS,
    "xsp.count": st.integers(-(2**63), 2**63 - 1),
    "xsp.size": st.floats() | st.just(float(2**63)),
    "xsp.exact": st.booleans(),
    "xsp.list": st.lists(TEXTS, max_size=3),
    'odd "name"': TEXTS,
}
_IDS = st.integers(1, 2**64 - 1)
_TIMES = st.integers(0, 2**63 - 1)


@st.composite
def pictures(draw: st.DrawFn) -> Picture:
    spans: list[Told] = []
    outside = draw(st.just(0) | _IDS)
    for span_id in draw(st.lists(_IDS, min_size=1, max_size=8, unique=True)):
        start = draw(_TIMES)
        parent = draw(st.sampled_from([span.span_id for span in spans])) if spans else outside
        spans.append(
            Told(
                span_id,
                parent,
                draw(st.sampled_from(["model", "framework"])),
                draw(TEXTS),
                start,
                draw(st.integers(start, 2**63 - 1)),
                draw(st.none() | TEXTS),
                draw(st.fixed_dictionaries({}, optional=_VALUES)),
                tuple(draw(st.lists(st.tuples(_TIMES, TEXTS, TEXTS), max_size=2))),
                tuple(draw(st.lists(st.tuples(st.just(OTHER_TRACE), _IDS, TEXTS), max_size=2))),
            )
        )
    state = draw(st.sampled_from(["", "a=1,b=2"]))
    return picture(*spans, trace_state=state, rows=draw(st.integers(1, 9)))


def spans_of(drawn: Picture) -> list[Told]:
    return cast(Any, drawn).spans
