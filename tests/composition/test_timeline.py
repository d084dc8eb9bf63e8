from __future__ import annotations

import sys
import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xsp.composition.journal import (
    Evaluation,
    Journal,
    Pause,
    waits_for_others,
    waits_within,
    with_waits,
)
from xsp.composition.timeline import Timeline
from xsp.composition.usual import GroupLatency
from xsp.evaluation import Rung
from xsp.level import Kind

BARE, OPS = Rung(frozenset()), Rung(frozenset({Kind.PIPELINE, Kind.LAYER, Kind.OP}))
LAYERS = Rung(frozenset({Kind.PIPELINE, Kind.LAYER}))
THREAD = 7
# As clocks are some days after they began to count: beyond what floating point holds exactly.
NOW = 10**16 + 1


def evaluation(
    begin: int, end: int, rung: Rung | None = None, *, group: int = 0, thread: int = THREAD
) -> Evaluation:
    return Evaluation(thread, group, NOW + begin, NOW + end, rung, rung is not None, (1, ()))


def pause(begin: int, end: int, thread: int = THREAD) -> Pause:
    return Pause(thread, NOW + begin, NOW + end)


def journal(evaluations: list[Evaluation], pauses: list[Pause], end: int) -> Journal:
    return Journal(THREAD, NOW, NOW + end, evaluations, [], pauses)


def paused(known: Journal) -> Journal:
    return with_waits(known, waits_within(known, waits_for_others(known)))


def timeline(known: Journal, **groups: GroupLatency) -> Timeline:
    latencies = {int(k.removeprefix("_")): v for k, v in groups.items()}
    waits = waits_for_others(known)
    return Timeline(paused(known), latencies, lambda n: n, waits)


def lasting(line: Timeline, *times: tuple[int, int], thread: int = THREAD) -> list[float]:
    start, end = (np.array(times, dtype=np.int64) + NOW).T
    found: list[float] = line.lasting(np.full(len(times), thread), start, end).tolist()
    return found


def test_pauses_are_taken_off_exactly() -> None:
    line = timeline(journal([], [pause(10, 30), pause(50, 60)], 100))
    whole, before, within, half, after = (0, 100), (0, 10), (10, 30), (40, 55), (60, 100)
    assert lasting(line, whole, before, within, half, after) == [70, 10, 0, 10, 40]


def test_pauses_that_overlap_are_taken_off_once() -> None:
    # A step is closed while the next one is being opened.
    line = timeline(journal([], [pause(40, 45), pause(38, 60), pause(10, 30)], 100))
    assert lasting(line, (0, 100), (35, 100), (38, 60)) == [58, 43, 0]


def test_pauses_of_other_threads_are_of_no_concern() -> None:
    line = timeline(journal([], [pause(10, 30), pause(0, 90, thread=8)], 100))
    assert lasting(line, (0, 100)) == [80]
    assert lasting(line, (0, 100), thread=8) == [10]
    assert lasting(line, (0, 100), thread=9) == [100]


def test_an_evaluation_is_shortened_by_what_recording_adds_to_its_like() -> None:
    made = [evaluation(100 * n, 100 * n + 50, OPS) for n in range(5)]
    line = timeline(journal(made, [], 500), _0=GroupLatency(20.0, {OPS.name: 50.0}))
    assert line.evaluations_ns.tolist() == [20.0] * 5
    assert lasting(line, (0, 500), (100, 150), (0, 100)) == [350, 20, 70]


def test_an_evaluation_that_was_slow_for_its_own_reasons_stays_so() -> None:
    made = [evaluation(100 * n, 100 * n + 50, OPS) for n in range(9)]
    made += [evaluation(1000, 1300, OPS), evaluation(1400, 1425, OPS)]
    line = timeline(journal(made, [], 2000), _0=GroupLatency(20.0, {}))
    *_, slow, quick = line.evaluations_ns.tolist()
    assert (slow, quick) == (270, 5)  # less by 30; half of what it is in proportion, at least


def test_evaluations_that_do_not_count_last_as_long_as_others_on_average() -> None:
    made = [evaluation(0, 900, BARE)._replace(counts=False)]  # the first: cold, but for itself
    made += [evaluation(1000, 9000, OPS)._replace(counts=False)]  # in which providers set up
    made += [evaluation(9100, 9700, BARE)._replace(counts=False)]  # with caches that they filled
    made += [evaluation(10_000 + 100 * n, 10_000 + 100 * n + 20 + n % 2) for n in range(20)]
    made += [evaluation(13_000, 13_900)]  # slow, but once
    found = timeline(journal(made, [], 14_000)).evaluations_ns
    # 21 is the median, three times that the most that counts.
    mean = (20.5 * 20 + 3 * 21) / 21
    assert found[0] == 900
    assert found[1] == found[2] == pytest.approx(mean)
    assert found[-1] == 900


def test_where_several_evaluations_are_far_slower_others_are_so_as_often() -> None:
    lengths = (20, 20, 20, 20, 200) * 4  # as on threads that wait for a core
    made = [evaluation(1000 * n, 1000 * n + each) for n, each in enumerate(lengths)]
    cold = [evaluation(20_000 + 1000 * n, 20_700 + 1000 * n, BARE) for n in range(10)]
    made += [each._replace(counts=False) for each in cold]
    found = timeline(journal(made, [], 30_000)).evaluations_ns
    assert found.tolist() == [*lengths, *[56] * 10]


def test_what_takes_far_longer_than_setting_up_is_the_programs_own() -> None:
    compiling = 3_000_000_000
    made = [evaluation(0, compiling, OPS)._replace(counts=False)]
    made += [
        evaluation(compiling + 1000 * n, compiling + 1000 * n + 50, OPS)._replace(counts=False)
        for n in range(1, 10)
    ]
    made += [evaluation(2 * compiling + 100 * n, 2 * compiling + 100 * n + 20) for n in range(9)]
    found = timeline(journal(made, [], 3 * compiling)).evaluations_ns
    assert found[:10].tolist() == [compiling - 30, *[20] * 9]


@given(st.lists(st.integers(-40, 40), min_size=3, max_size=50))
def test_noise_of_recorded_evaluations_makes_the_sum_neither_longer_nor_shorter(
    noise: list[int],
) -> None:
    made = [evaluation(1000 * n, 1000 * n + 100) for n in range(5)]
    made += [
        evaluation(1000 * n, 1000 * n + 200 + each, OPS)
        for n, each in enumerate([*noise, *(-each for each in noise)], 5)
    ]
    found = timeline(journal(made, [], 1000 * len(made))).evaluations_ns
    assert found.sum() == pytest.approx(100 * len(made))


def test_many_recorded_evaluations_are_slow_at_times_by_what_was_recorded() -> None:
    made = [evaluation(1000 * n, 1000 * n + 100) for n in range(10)]
    made += [evaluation(1000 * n, 1000 * n + (280 if n % 5 else 380), OPS) for n in range(10, 30)]
    found = timeline(journal(made, [], 30_000)).evaluations_ns
    assert found.sum() == pytest.approx(100 * len(made), rel=0.02)


def test_those_of_several_rungs_together_are_as_slow_as_others_where_each_rung_has_few() -> None:
    layers = Rung(frozenset({Kind.PIPELINE, Kind.LAYER}))
    made = [evaluation(1000 * n, 1000 * n + 100) for n in range(6)]
    for first, rung in ((6, OPS), (12, layers)):
        lengths = (200, 200, 200, 200, 200, 400)  # of each rung too few to tell what is usual
        made += [
            evaluation(1000 * n, 1000 * n + lasts, rung) for n, lasts in enumerate(lengths, first)
        ]
    found = timeline(journal(made, [], 18_000)).evaluations_ns
    assert found.sum() == pytest.approx(100 * len(made), rel=0.02)


def test_sampled_evaluations_take_as_long_as_others_on_average_whatever_sampling_took() -> None:
    sampled = Rung(frozenset({Kind.PIPELINE}), sampled=True)
    made = [evaluation(1000 * n, 1000 * n + 100) for n in range(10)]
    lengths = (300, 310, 290, 900, 305, 600)
    made += [evaluation(1000 * n, 1000 * n + at, sampled) for n, at in enumerate(lengths, 10)]
    found = timeline(journal(made, [], 16_000)).evaluations_ns
    assert found.tolist() == [100] * 16


def test_evaluations_with_nothing_recorded_last_as_long_as_they_did() -> None:
    made = [evaluation(0, 10), evaluation(20, 50, BARE), evaluation(60, 70, OPS, group=1)]
    line = timeline(journal(made, [], 100), _0=GroupLatency(5.0, {"bare": 5.0}))
    assert line.evaluations_ns.tolist() == [10, 30, 10]  # of group 1 nothing is known


def test_of_a_group_without_a_trace_its_evaluations_without_recording_tell() -> None:
    made = [evaluation(100 * n, 100 * n + 20, (BARE, None)[n % 2]) for n in range(4)]
    made += [evaluation(100 * n, 100 * n + 50, OPS) for n in range(4, 8)]
    assert timeline(journal(made, [], 800)).evaluations_ns.tolist() == [20] * 8
    # Two are too few to tell.
    assert timeline(journal(made[2:], [], 800)).evaluations_ns.tolist() == [20] * 2 + [50] * 4


def test_few_evaluations_are_compared_with_the_latency_of_their_rung() -> None:
    made = [evaluation(0, 50, OPS), evaluation(60, 200, OPS)]
    line = timeline(journal(made, [], 300), _0=GroupLatency(20.0, {OPS.name: 50.0}))
    assert line.evaluations_ns.tolist() == [20, 110]


def test_what_recording_adds_to_unlike_evaluations_is_judged_by_their_calls() -> None:
    # 10 ns a call, and 20 where operators are recorded, which were the long ones by chance.
    short, long = [(1, None), (2, None), (3, None)], [(30, OPS), (40, OPS), (50, OPS)]
    made, at = [], 0
    for calls, rung in short + long:
        lasts = calls * (10 if rung is None else 20)
        made.append(evaluation(at, at + lasts, rung)._replace(size=(calls, ())))
        at += lasts + 10
    line = timeline(journal(made, [], at))
    assert line.evaluations_ns.tolist() == pytest.approx([10, 20, 30, 300, 400, 500])


def test_what_armed_providers_add_between_evaluations_is_taken_off() -> None:
    made, at = [], 0
    for rung, gap in ((BARE, 30), (OPS, 45)):
        for _ in range(6):
            made.append(evaluation(at, at + 10, rung))
            at += 10 + gap
    line = timeline(journal(made, [], at), _0=GroupLatency(10.0, {}))
    # Six times 30 after evaluations without, five times 45 after those with: 15 less each.
    assert lasting(line, (0, at - 45)) == [12 * 10 + 6 * 30 + 5 * 30]


def test_what_rungs_add_between_evaluations_is_taken_off_rung_by_rung() -> None:
    made, pauses, at = [], [], 0
    for rung, gap, count in ((BARE, 30, 6), (OPS, 45, 6), (LAYERS, 90, 6), (BARE, 30, 1)):
        for _ in range(count):
            made.append(evaluation(at, at + 10, rung))
            third = at + 10 + gap // 3
            pauses.append(pause(third, third + 7))  # as where a part between them is told of
            at += 10 + gap + 7
    whole = (0, made[-1].end_ns - NOW)
    line = timeline(journal(made, pauses, at), _0=GroupLatency(10.0, {}))
    assert lasting(line, whole) == [pytest.approx(19 * 10 + 18 * 30)]
    # A rung that came once adds as much as another, and no more: the program may have done more.
    rare = Rung(frozenset(Kind))
    made += [evaluation(at, at + 10, rare), evaluation(at + 1000, at + 1010, BARE)]
    line = timeline(journal(made, pauses, at + 1010), _0=GroupLatency(10.0, {}))
    assert lasting(line, (0, at + 1010)) == [pytest.approx(21 * 10 + 19 * 30 + 930)]


def test_after_an_evaluation_soon_after_work_of_xsps_the_program_takes_as_long_as_usual() -> None:
    made, gaps, begin = [], list[tuple[int, int]](), 0
    for number in range(40):
        late = number % 8 > 3  # the others came soon after work of xsp's, and do not count
        made.append(evaluation(begin, begin + 50, BARE)._replace(counts=late))
        gaps.append((begin + 50, begin + (90 if late else 110)))
        begin = gaps[-1][1]
    line = timeline(journal(made, [], begin))
    assert lasting(line, *gaps[:-1]) == pytest.approx([40] * 39, abs=0.1)


def test_after_an_evaluation_in_detail_the_program_takes_as_long_as_usual() -> None:
    detail = Rung(frozenset(Kind), detail=True)
    made, at = [], 0
    for rung, gap in [(BARE, 30)] * 6 + [(detail, 900), (BARE, 30)]:
        made.append(evaluation(at, at + 10, rung))
        at += 10 + gap
    line = timeline(journal(made, [], at), _0=GroupLatency(10.0, {}))
    assert lasting(line, (0, at - 30)) == [8 * 10 + 7 * 30]


def test_a_thread_that_waits_for_others_was_delayed_as_they_were_on_average() -> None:
    # What was recorded added 20 to the one, 40 to the other.
    made = [evaluation(at, at + 5, BARE, thread=8) for at in (55, 60, 65)]
    made += [evaluation(70, 95, OPS, thread=8)]
    made += [evaluation(at, at + 25, OPS, thread=9) for at in (55, 80)]
    known = {"_0": GroupLatency(5.0, {OPS.name: 25.0})}
    assert lasting(timeline(journal(made, [], 120), **known), (0, 120)) == [90]
    # While xsp works on one, the other waits for Python's lock.
    pauses = [pause(10, 30, thread=8), pause(20, 50, thread=9)]
    assert lasting(timeline(journal(made, pauses, 120), **known), (0, 120)) == [50]
    own = [pause(106, 108), pause(109, 110)]  # as after data is loaded there
    whole, part = (0, 120), (0, 107)
    assert lasting(timeline(journal(made, pauses + own, 120), **known), whole, part) == [47, 36]


def test_evaluations_wait_for_xsps_work_on_other_threads() -> None:
    made = [evaluation(0, 50), evaluation(60, 100, thread=8), evaluation(10, 40, thread=8)]
    made[0] = made[0]._replace(pauses=((NOW + 33, NOW + 38),))
    made += [evaluation(200, 205)]
    pauses = [pause(20, 30, thread=8), pause(25, 35, thread=8), pause(52, 66), pause(45, 55, 8)]
    pauses += [pause(70, 90, thread=9)]  # which evaluates nothing
    known = journal(made, pauses, 100)
    waits = waits_for_others(known)
    mine = [[20, 35], [45, 55], [70, 90]]
    assert [[time - NOW for time in wait] for wait in waits[THREAD]] == mine
    # The first one has paused for 5, of which 2 are in the time that it waited.
    assert [each.ran_ns for each in paused(known).evaluations] == [27, 14, 25, 5]
    # Less than the quickest one none has taken: its thread went on while the others waited.
    known.evaluations[-1] = evaluation(200, 220)
    assert [each.ran_ns for each in paused(known).evaluations] == [27, 20, 25, 20]


def test_where_xsp_worked_on_one_thread_or_there_is_no_lock_nobody_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = journal([evaluation(0, 50)], [pause(20, 30)], 100)
    assert waits_for_others(alone) == {}
    assert paused(alone) == alone
    several = journal([evaluation(0, 50), evaluation(0, 50, thread=8)], [pause(20, 30)], 100)
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    assert waits_for_others(several) == {}


def test_what_the_waiting_thread_itself_paused_is_taken_off_once() -> None:
    # The others waited for that as well, between evaluations or in one.
    for other in ([(0, 40), (80, 100)], [(30, 58)]):
        made = [evaluation(begin, end, thread=8) for begin, end in other]
        line = timeline(journal([*made, evaluation(60, 70)], [pause(45, 55)], 100))
        assert lasting(line, (0, 100)) == [90]


def test_the_lock_is_free_while_devices_are_waited_for() -> None:
    idle = pause(20, 80, thread=8)._replace(idle=True)
    made = [evaluation(0, 50)._replace(awaited_ns=20), evaluation(90, 99, thread=8)]
    assert waits_for_others(journal(made, [idle], 100))[THREAD] == []
    known = journal(made, [pause(25, 45, thread=8)], 100)
    assert paused(known).evaluations[0].ran_ns == 45


def test_nobody_waits_for_a_thread_that_waits_for_xsps_work_itself() -> None:
    waiting = pause(20, 60, thread=8), pause(22, 50, thread=8)._replace(idle=True)
    made = [evaluation(0, 100), evaluation(65, 70, thread=8)]
    waits = waits_for_others(journal(made, [*waiting, pause(25, 48, thread=9)], 100))
    assert [[time - NOW for time in wait] for wait in waits[THREAD]] == [
        [20, 22],
        [25, 48],
        [50, 60],
    ]


def test_a_thread_waits_for_others_while_it_evaluates_nothing_itself() -> None:
    warm_up = evaluation(0, 20)
    made = [evaluation(60, 70, thread=8), evaluation(60, 70, thread=9)]
    pauses = [pause(30, 40, thread=8), pause(30, 50, thread=9)]
    line = timeline(journal([warm_up, *made], pauses, 100))
    assert lasting(line, (0, 100), (0, 20)) == [80, 20]
    at_once = [evaluation(28, 55), evaluation(57, 75), evaluation(200, 205)]
    line = timeline(journal([*at_once, *made], pauses, 100))
    assert lasting(line, (0, 100)) == [80]  # its evaluation waited, 30 to 50


def test_what_is_told_within_an_evaluation_is_a_part_of_it() -> None:
    # Data was loaded between two optimizers' steps, of which the second ends the evaluation.
    made = [evaluation(10, 40), evaluation(50, 80)]
    line = timeline(journal(made, [pause(20, 25), pause(42, 45), pause(8, 10)], 100))
    assert lasting(line, (0, 100), (10, 40), (20, 25), (40, 50)) == [95, 30, 5, 7]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=30), st.data())
def test_parts_side_by_side_last_as_long_as_the_whole(
    lengths: list[tuple[int, int]], data: st.DataObject
) -> None:
    pauses, at = [], 0
    for gap, length in lengths:
        pauses.append(pause(at + gap, at + gap + length))
        at += gap + length
    line = timeline(journal([], data.draw(st.permutations(pauses)), at + 1))
    cuts = sorted(data.draw(st.lists(st.integers(0, at + 1), max_size=8)))
    edges = [0, *cuts, at + 1]
    pieces = lasting(line, *pairwise(edges))
    assert sum(pieces) == pytest.approx(at + 1 - sum(length for _, length in lengths))
    assert lasting(line, (0, at + 1)) == [pytest.approx(sum(pieces))]


def test_time_grows_with_the_evaluations_and_not_with_their_square() -> None:
    def seconds(count: int) -> float:
        made = [evaluation(10 * n, 10 * n + 5) for n in range(count)]
        pauses = [pause(10 * n + 6, 10 * n + 7) for n in range(count)]
        begin = time.process_time()
        timeline(journal(made, pauses, 10 * count))
        return time.process_time() - begin

    few = min(seconds(2_000) for _ in range(3))
    assert seconds(40_000) < 100 * few  # 20 times, if it does; 400 times, if not


def test_gaps_soon_after_other_work_of_xsps_last_as_long_on_average_as_others() -> None:
    made, at, lasting_at_all = [], 0, 0
    for number in range(40):
        counts = number >= 15
        made.append(evaluation(at, at + 10, BARE)._replace(counts=counts))
        gap = 30 if counts or number % 3 else 80  # some are slow for xsp's reasons
        gap = 900 if number == 7 else gap  # and one for its own
        lasting_at_all += 900 if number == 7 else 30
        at += 10 + gap
    made.append(evaluation(at, at + 10, BARE))
    line = timeline(journal(made, [], at + 10))
    gaps = [(one.end_ns - NOW, other.begin_ns - NOW) for one, other in pairwise(made)]
    found = sum(lasting(line, *gaps))
    assert found == pytest.approx(lasting_at_all, rel=0.02)


def varying(begin: int, lasts: int, length: int, *, counts: bool) -> Evaluation:
    size = (1, (((1, length), "int64"),))
    return evaluation(begin, begin + lasts, BARE)._replace(size=size, counts=counts)


def test_unlike_evaluations_that_do_not_count_keep_their_size_and_what_is_their_own() -> None:
    us, second = 1_000, 1_000_000_000
    made = [evaluation(0, 100 * us, OPS)]  # after which what does not count is so by xsp
    made += [varying(second + n * 10_000 * us, 1000 * us + n, 10, counts=True) for n in range(20)]
    cold = [1100, 1300, 1200, 1100, 1400, 1200, 1100, 9000, 1200, 1300]  # one in which xsp set up
    made += [
        varying(2 * second + n * 20_000 * us, lasts * us, 10, counts=False)
        for n, lasts in enumerate(cold)
    ]
    made.append(varying(3 * second, 20_000 * us, 200, counts=False))  # twenty times as long
    made.append(varying(4 * second, 3 * second, 10, counts=False))  # it was compiled
    found = timeline(journal(made, [], 8 * second)).evaluations_ns[21:]
    assert found[:10].max() < 3_000 * us
    assert found[10] > 12_000 * us
    assert found[11] == pytest.approx(3 * second, rel=0.02)


Program = list[tuple[int, float]]  # the length of each sentence, and how long it takes in us


def estimated_part(quiet: Program, slowed: Program) -> float:
    """Return how long evaluations are said to last that were 1.3 times as slow, and do not count.

    As a part of how long they last.
    """
    us, second = 1_000, 1_000_000_000
    made = [evaluation(0, 100 * us, OPS)]
    for begin, program, times, counts in ((1, quiet, 1.0, True), (2, slowed, 1.3, False)):
        made += [
            varying(begin * second + n * 20_000 * us, int(took * times * us), length, counts=counts)
            for n, (length, took) in enumerate(program)
        ]
    found = timeline(journal(made, [], 4 * second)).evaluations_ns[1 + len(quiet) :]
    return float(found.sum() / sum(took * us for _, took in slowed))


@pytest.mark.parametrize("by_size", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("low", [5, 30])  # as many are larger, or most
def test_unlike_evaluations_that_do_not_count_last_longer_by_as_much_as_those_that_do(
    by_size: float, low: int
) -> None:
    random = np.random.default_rng(3)

    def program(lengths: list[int]) -> Program:
        return [(each, 1000 * (1 + by_size * max(each / 22 - 1, 0))) for each in lengths]

    quiet, slowed = (random.integers(least, 40, 40).tolist() for least in (5, low))
    assert estimated_part(program(quiet), program(slowed)) == pytest.approx(1.0, rel=0.04)


@pytest.mark.parametrize("seed", range(5))
def test_noise_of_evaluations_of_about_one_size_says_nothing_of_larger_ones(seed: int) -> None:
    random = np.random.default_rng(seed)
    lengths = random.integers(19, 22, 29).tolist()
    quiet = [(each, 50 * each * random.uniform(0.95, 1.05)) for each in lengths]
    assert estimated_part(quiet, [(200, 10_000.0)] * 12) == pytest.approx(1.0, rel=0.05)


def test_after_the_first_evaluation_of_a_streak_the_program_is_slower_than_after_the_next() -> None:
    made, begin = [], 0
    for number in range(60):
        place = number % 6
        counts, gap = place > 2, (200, 60, 60, 40, 40, 40)[place]
        each = evaluation(begin, begin + 50, BARE)._replace(counts=counts, went_on=place > 0)
        made.append(each)
        begin += 50 + gap
    gaps = [(one.end_ns - NOW, other.begin_ns - NOW) for one, other in pairwise(made)]
    assert lasting(timeline(journal(made, [], begin)), *gaps) == pytest.approx([40] * 59, abs=0.1)
