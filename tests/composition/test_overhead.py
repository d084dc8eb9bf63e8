"""The overhead of parts of a program: what its clock showed beyond the latency of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import frame, layer, pipeline, trace
from strategies import unhurried

from xsp.composition.group import Group
from xsp.composition.journal import Evaluation, Journal, Mark, Pause
from xsp.composition.nested.iteration import ITERATION, with_iterations
from xsp.composition.nested.node import Made
from xsp.composition.nested.part import first_calls, parts
from xsp.composition.own_time import Sampled
from xsp.composition.timeline import Timeline
from xsp.composition.tree import compose
from xsp.composition.usual import GroupLatency
from xsp.evaluation import Rung
from xsp.level import Kind
from xsp.provider import SAMPLE_SCHEMA
from xsp.trace import Trace

THREAD = 1
BARE, OPS = Rung(frozenset()), Rung(frozenset({Kind.PIPELINE, Kind.LAYER, Kind.OP}))
STEP = Group(0, "Net", "training step", "SGD")


def program(journal: Journal, group: Group = STEP, known: Trace | None = None) -> Trace:
    """Return the trace of a program with one group."""
    made = journal.evaluations
    latency_ns = known.root.latency_ns if known else None
    latencies = {0: GroupLatency(latency_ns, {})} if latency_ns else {}
    timeline = Timeline(journal, latencies, lambda n: n)
    nested = with_iterations(parts(journal, "block", ["step"] * len(made)), [group] * len(made))
    times = [pl.Series([getattr(part, at) for part in nested]).to_numpy() for at in TIMES]
    lasting, traces, groups = timeline.lasting(*times), {0: known} if known else {}, [0] * len(made)
    first = first_calls(nested, lasting.tolist(), groups, traces)
    spans = compose(
        nested,
        lasting,
        Made(groups, [each.ran_ns for each in made], timeline.estimated, first),
        traces,
        {},
        Sampled(pl.DataFrame(schema=SAMPLE_SCHEMA), (), ()),
    )
    result = Trace(spans, trace(pipeline("block")).metadata)
    result.check()
    return result


TIMES = ("thread", "start_ns", "end_ns")


def overheads(found: Trace) -> dict[str, float]:
    """Return the overhead of each part of a program, by its path."""
    of_program = pl.col("attributes").struct.field("program_part")
    return dict(found.spans.filter(of_program).select("path", "overhead_ns").iter_rows())


def printed(found: Trace) -> dict[str, str]:
    """Return what the tree shows as the overhead of each row, by its name."""
    lines = found.tree(rows=None, width=140).splitlines()
    [head] = [line for line in lines if "overhead" in line and "latency" in line]
    end = head.index("overhead") + len("overhead")
    rows = lines[lines.index(head) + 1 :]
    named = ((row.strip("│├└─ ").split("  ")[0], row[:end].split("%")[-1].strip()) for row in rows)
    return {name: overhead for name, overhead in named if name}


def steps(*lengths: tuple[int, Rung | None]) -> list[Evaluation]:
    """Return evaluations of such lengths (ns), one every 10,000 ns."""
    return [
        Evaluation(THREAD, 0, 10_000 * n, 10_000 * n + ns, rung, rung is not None, (1, ()))
        for n, (ns, rung) in enumerate(lengths)
    ]


def training(*lengths: tuple[int, Rung | None]) -> Journal:
    """Return steps, between two of which xsp works for 1,000 ns and data is loaded for 2,000."""
    made, pauses, marks = steps(*lengths), [], []
    for each in made[:-1]:
        pauses.append(Pause(THREAD, each.begin_ns + 5_000, each.begin_ns + 6_000))
        pauses.append(Pause(THREAD, each.begin_ns + 7_000, each.begin_ns + 7_200))
        marks.append(Mark("load", each.begin_ns + 6_500, each.begin_ns + 8_500, THREAD, {}))
    return Journal(THREAD, 0, 10_000 * len(made), made, marks, pauses)


def test_that_of_each_part_is_what_the_clock_showed_beyond_the_latency() -> None:
    # Recording makes two of seven steps 1,500 ns longer.
    found = program(training(*[(3_000, BARE)] * 5, *[(4_500, OPS)] * 2), known=net(3_000))
    added = overheads(found)
    assert added["block/training iteration/step"] == pytest.approx(2 * 1_500)
    assert added["block/training iteration/load"] == 6 * 200
    assert added["block/training iteration"] == pytest.approx(2 * 1_500 + 6 * 1_200)
    assert added["block"] == pytest.approx(2 * 1_500 + 6 * 1_200)
    for row in found.spans.filter(pl.col("path").is_in(list(added))).iter_rows(named=True):
        shown = row["measured_end_ns"] - row["measured_start_ns"]
        assert row["latency_ns"] + row["overhead_ns"] == pytest.approx(shown)


def net(latency_ns: int, margin: float = 0.01) -> Trace:
    """Return the trace of a group whose latency is known so well."""
    node = pipeline("step", layer("fc", "Linear", own_ns=latency_ns), own_ns=0)
    return Trace(frame(node, margin=margin), trace(node).metadata)


def test_the_tree_shows_it_however_wide_the_interval_of_the_latency_is() -> None:
    made = training(*[(3_000, BARE)] * 5, *[(4_500, OPS)] * 2)
    for margin in (0.01, 0.9):
        shown = printed(program(made, known=net(3_000, margin)))
        assert shown["block"] == shown[ITERATION] == "10.2 µs"
        assert shown["step"] == "3.00 µs"
        assert shown["load"] == "1.20 µs"
    assert shown["fc Linear"] == "≈ 0"  # of a layer it is not known


def test_the_interval_is_that_of_what_was_estimated() -> None:
    # Of fifteen steps two were recorded, and those after the plan was complete are on no rung.
    lengths = [*[(3_000, BARE)] * 5, *[(4_500, OPS)] * 2, *[(3_000, None)] * 8]
    found = program(training(*lengths), known=net(3_000, margin=0.1))
    rows = {row["path"]: row for row in found.spans.iter_rows(named=True)}
    for path in ("block", "block/training iteration", "block/training iteration/step"):
        row = rows[path]
        reach_ns = 0.1 * 2 * 3_000
        assert row["latency_low_ns"] == pytest.approx(row["latency_ns"] - reach_ns), path
        assert row["latency_high_ns"] == pytest.approx(row["latency_ns"] + reach_ns), path
    row = rows["block/training iteration/step/fc"]  # a layer is known from recorded steps alone
    assert row["latency_high_ns"] == pytest.approx(1.1 * row["latency_ns"])


def test_what_was_not_estimated_has_no_interval() -> None:
    found = program(training(*[(3_000, BARE)] * 5, *[(3_300, None)] * 8), known=net(3_000))
    parts = found.spans.filter(pl.col("attributes").struct.field("program_part"))
    assert parts["latency_low_ns"].null_count() == parts.height


def test_what_does_not_count_lasts_as_long_as_others_and_no_longer_than_it_did() -> None:
    for took_ns, added_ns in ((500, 0), (4_500, 1_500)):
        made = training(*[(3_000, BARE)] * 5, (took_ns, OPS))
        made.evaluations[-1] = made.evaluations[-1]._replace(counts=False)
        added = overheads(program(made, known=net(3_000)))
        assert added["block/training iteration/step"] == pytest.approx(added_ns)
        assert added["block"] == pytest.approx(5 * 1_200 + added_ns)


def test_what_lasts_longer_than_it_did_is_shown_as_such_and_its_parent_has_less() -> None:
    # Two that do not count last as long as they did on average, and one of them is apart.
    made = training(*[(3_000, BARE)] * 5, (4_500, OPS), (500, OPS))
    made.evaluations[-2:] = [each._replace(counts=False) for each in made.evaluations[-2:]]
    made.marks.append(Mark("apart", 60_000, 61_000, THREAD, {}))
    found = program(made, known=net(3_000))
    added = overheads(found)
    assert added["block/training iteration/step"] == pytest.approx(2_000)
    assert added["block/apart/step"] == pytest.approx(-2_000)
    assert added["block"] == pytest.approx(6 * 1_200)
    assert printed(found)["apart"] == "-2.00 µs"


def test_quick_ones_that_do_not_count_last_no_longer_though_one_was_compiled() -> None:
    compiling_ns = 5_000_000_000
    made = steps(*[(3_000, BARE)] * 5, *[(500, OPS)] * 9)
    made.append(Evaluation(THREAD, 0, 200_000, 200_500 + compiling_ns, OPS, False, (1, ())))
    made[5:] = [each._replace(counts=False) for each in made[5:]]
    found = Timeline(Journal(THREAD, 0, 10**10, made), {}, lambda n: n)
    assert found.evaluations_ns[:5].tolist() == [3_000] * 5
    assert found.evaluations_ns[5:].sum() <= 10 * 500 + compiling_ns
    assert found.evaluations_ns[-1] == pytest.approx(compiling_ns, rel=1e-4)


EVENTS = ("step", "step", "pause", "part", "part", "open", "close", "wait")


@st.composite
def journals(draw: st.DrawFn) -> Journal:
    """Draw a program of steps, pauses and parts, one after the other, some parts around several."""
    now, made, marks, pauses, began = 0, [], [], [], []
    for what in draw(st.lists(st.sampled_from(EVENTS), min_size=12)):
        start, now = now, now + draw(st.integers(1, 5_000))
        if what == "step":
            rung = draw(st.sampled_from([None, BARE, OPS]))
            counts = rung is not None and draw(st.booleans())
            inside = ((start, start + (now - start) // 3),) * draw(st.booleans())
            made.append(Evaluation(THREAD, 0, start, now, rung, counts, (1, ()), inside))
        elif what == "pause":
            pauses.append(Pause(THREAD, start, now))
        elif what == "part":
            marks.append(Mark(draw(st.sampled_from("ab")), start, now, THREAD, {}))
            pauses += [Pause(THREAD, start, (start + now) // 2)] * draw(st.booleans())
        elif what == "open":
            began.append(start)
        elif what == "close" and began:
            marks.append(Mark(f"around {len(began)}", began.pop(), now, THREAD, {}))
    return Journal(THREAD, 0, now + 1, made, marks, pauses)


@unhurried
@given(journals(), st.none() | st.integers(1, 10_000))
def test_that_of_a_part_is_that_of_the_parts_in_it_and_its_own(
    journal: Journal, latency_ns: int | None
) -> None:
    found = program(journal, known=net(latency_ns) if latency_ns else None)
    took_ns = overheads(found)["block"] + (found.root.latency_ns or 0)
    assert took_ns == pytest.approx(journal.end_ns)
    own = by_parent(found.spans, overheads(found))
    # What is taken to last as long as others may have been quicker than they.
    around = {path: ns for path, ns in own.items() if "step" not in path.rpartition("/")[2]}
    assert all(ns >= -1e-3 for ns in around.values()), around


def by_parent(spans: pl.DataFrame, added: Mapping[str, float]) -> dict[str, float]:
    """Return the overhead of each part less that of the parts in it."""
    result = dict(added)
    path_of = dict(spans.select("span_id", "path").iter_rows())
    rows: Sequence[tuple[str, int]] = spans[1:].select("path", "parent_id").rows()
    for path, parent in rows:
        if path in added:
            result[path_of[parent]] -= added[path]
    return result
