from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from xsp.composition.journal import Evaluation, Journal, Pause, with_pause_overhead
from xsp.evaluation import Times, clipped

THREAD, OTHER = 7, 8
US = 1_000


def evaluation(begin: int, end: int, *pauses: tuple[int, int], thread: int = THREAD) -> Evaluation:
    return Evaluation(thread, 0, begin, end, None, False, (1, ()), pauses)


def journal(evaluations: list[Evaluation], pauses: list[Pause], overhead_ns: float) -> Journal:
    return Journal(THREAD, 0, 10_000 * US, evaluations, [], pauses, pause_overhead_ns=overhead_ns)


def times(known: Journal, thread: int = THREAD) -> Times:
    return [(each.begin_ns, each.end_ns) for each in known.pauses if each.thread == thread]


def test_what_is_not_noted_of_a_pause_comes_after_it() -> None:
    made = [evaluation(1000 * US, 2000 * US, (1500 * US, 1501 * US))]
    before, after = Pause(THREAD, 990 * US, 1000 * US), Pause(THREAD, 2000 * US, 2002 * US)
    found = with_pause_overhead(journal(made, [before, after], 3 * US))
    assert found.evaluations[0].pauses == (
        (1000 * US, 1003 * US),
        (1500 * US, 1504 * US),
    )
    assert times(found) == [(990 * US, 1003 * US), (2000 * US, 2005 * US)]


def test_less_is_not_noted_where_little_of_the_program_ran_before() -> None:
    pauses = [
        Pause(THREAD, 0, US),
        Pause(THREAD, 51 * US, 52 * US),
        Pause(THREAD, 54 * US, 90 * US),
    ]
    # After the first all of it; after half of what displaces xsp's code half of it; a fiftieth.
    assert times(with_pause_overhead(journal([], pauses, 10 * US))) == [
        (0, 11 * US),
        (51 * US, 53 * US),  # half of the time until the next pause, which is less than 5 µs
        (54 * US, 90 * US + 200),
    ]


def test_pauses_of_other_threads_and_waits_for_devices_are_as_they_were() -> None:
    idle = Pause(THREAD, 1600 * US, 1700 * US, idle=True)
    made = [evaluation(1000 * US, 2000 * US)]
    found = with_pause_overhead(journal(made, [idle, Pause(OTHER, 1200 * US, 1300 * US)], 3 * US))
    assert found.evaluations == made
    assert times(found) == [(1600 * US, 1700 * US)]
    assert times(found, OTHER) == [(1200 * US, 1303 * US)]


def test_what_held_an_evaluation_up_is_its_pause_whoever_noted_that() -> None:
    collection = Pause(THREAD, 1200 * US, 1400 * US)
    found = with_pause_overhead(journal([evaluation(1000 * US, 2000 * US)], [collection], 0.0))
    assert found.evaluations[0].ran_ns == 800 * US


INSTANTS = st.lists(st.integers(0, 2_000 * US), max_size=40, unique=True).map(sorted)


@given(INSTANTS, INSTANTS, st.floats(0, 20 * US))
def test_pauses_only_become_longer_and_leave_half_of_the_rest(
    of_pauses: list[int], of_evaluations: list[int], overhead_ns: float
) -> None:
    noted = list(zip(of_pauses[::2], of_pauses[1::2], strict=False))
    made = [
        evaluation(*each) for each in zip(of_evaluations[::2], of_evaluations[1::2], strict=False)
    ]
    pauses = [Pause(THREAD, *each) for each in noted]
    found = with_pause_overhead(journal(made, pauses, overhead_ns))
    longer = times(with_pause_overhead(journal([], pauses, overhead_ns)))
    assert [begin for begin, _ in longer] == [begin for begin, _ in noted]
    for before, after in zip(noted, longer, strict=True):
        assert before[1] <= after[1] <= before[1] + overhead_ns
    for (_, end), (_, longer_end), (begin, _) in zip(noted, longer, noted[1:], strict=False):
        assert longer_end - end <= (begin - end) / 2
    for each in found.evaluations:
        assert list(each.pauses) == clipped(longer, each.begin_ns, each.end_ns)
    # The journal keeps what reaches out of evaluations, and nothing else.
    kept = times(found)
    for time in longer:
        within = any(
            each.begin_ns <= time[0] and time[1] <= each.end_ns for each in found.evaluations
        )
        assert (time in kept) is not within
