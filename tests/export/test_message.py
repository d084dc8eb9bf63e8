from __future__ import annotations

from hypothesis import given, settings
from pictures import TRACE_ID, drawn, expected, slices, written

from xsp.export import message
from xsp.export.picture import Slice


@settings(deadline=None)
@given(slices().filter(lambda part: part.spans.height > 0))
def test_bytes_of_a_span_are_those_that_protobuf_writes(part: Slice) -> None:
    theirs = [one for _, one in written(expected(drawn(part)))]
    assert message.encode(part, TRACE_ID) == theirs
