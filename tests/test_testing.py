from __future__ import annotations

import pytest

from xsp.level import Kind
from xsp.provider.contract import Records, Request
from xsp.testing import FakeClock, FakeProvider, ReplayProvider


def test_a_fake_span_costs_what_it_was_told_to_and_only_when_armed() -> None:
    clock = FakeClock()
    fake = FakeProvider(clock, [Kind.OP], cost_ns=11)
    with fake.span("idle", Kind.OP):
        clock.advance(5)
    assert clock.now() == 5
    fake.start(clock, Request(frozenset({Kind.OP})))
    with fake.span("armed", Kind.OP):
        clock.advance(5)
    with fake.span("of another kind", Kind.LAYER):
        clock.advance(5)
    frame = fake.spans(fake.stop())
    assert clock.now() == 5 + 5 + 11 + 5
    assert frame.select("name", "start_ns", "end_ns").rows() == [("armed", 10, 15)]


def test_a_replay_plays_its_records_through_the_originals_code() -> None:
    fake = FakeProvider(FakeClock(), [Kind.OP])
    one, two = Records((("op", "a", 1, 2),)), Records((("op", "b", 3, 4),))
    replay = ReplayProvider(fake, [one, two])
    played = [replay.spans(replay.stop())["name"].to_list() for _ in range(3)]
    assert played == [["a"], ["b"], ["b"]]
    with pytest.raises(ValueError, match="nothing to play"):
        ReplayProvider(fake, [])
