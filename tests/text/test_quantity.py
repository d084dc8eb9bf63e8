from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xsp.text import (
    beyond,
    bounded,
    counted,
    duration,
    estimate,
    margin,
    percent,
    printable,
    share,
    shorten,
)


@pytest.mark.parametrize(
    ("nanoseconds", "said"),
    [
        (0, "0 ns"),
        (0.25, "0.25 ns"),
        (1, "1.00 ns"),
        (999.4, "999 ns"),
        (999.6, "1.00 µs"),
        (9_996, "10.0 µs"),
        (99_960, "100 µs"),
        (412_345, "412 µs"),
        (999_600, "1.00 ms"),
        (41_234_567, "41.2 ms"),
        (3_141_592_653, "3.14 s"),
        (1_234_000_000_000, "1,234 s"),
        (-12_340, "-12.3 µs"),
        (None, "—"),
        (math.nan, "—"),
        (math.inf, "—"),
    ],
)
def test_durations_have_three_digits_and_a_fitting_unit(
    nanoseconds: float | None, said: str
) -> None:
    assert duration(nanoseconds) == said


@given(st.floats(1, 9.9e11))
def test_durations_are_right_to_half_of_the_third_digit(nanoseconds: float) -> None:
    number, unit = duration(nanoseconds).split()
    scale = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}[unit]
    assert float(number) * scale == pytest.approx(nanoseconds, rel=0.00501)
    assert len(re.sub(r"\D", "", number)) == 3


@pytest.mark.parametrize(
    ("latency", "margin", "said"),
    [
        (41_234_567.0, 312_000.0, ("41.2", "0.31", "ms")),
        (3_214_000.0, 4_200.0, ("3.21", "0.004", "ms")),
        (3_214_000.0, 12.0, ("3.21", "0.001", "ms")),
        (412_000.0, 3_140.0, ("412", "3.1", "µs")),
        (412_000.0, 98_700.0, ("412", "99", "µs")),
        (412_000.0, 0.0, ("412", "", "µs")),
        (412_000.0, None, ("412", "", "µs")),
        (412_000.0, math.nan, ("412", "", "µs")),
        (None, None, ("—", "", "")),
    ],
)
def test_margin_is_in_the_latencys_unit(
    latency: float | None, margin: float | None, said: tuple[str, str, str]
) -> None:
    assert estimate(latency, margin) == said


@pytest.mark.parametrize(
    ("part", "said"),
    [(1, "100.0 %"), (0.07812, "7.8 %"), (0.0005, "0.1 %"), (0.0004, "<0.1 %"), (0, "0.0 %")],
)
def test_percentages_have_one_decimal_and_no_false_zero(part: float, said: str) -> None:
    assert percent(part) == said


def test_nouns_follow_their_number() -> None:
    assert counted(0, "span") == "0 spans"
    assert counted(1, "copy") == "1 copy"
    assert counted(12_345, "copy") == "12,345 copies"
    assert counted(2, "launch") == "2 launches"


@given(st.text())
def test_printable_text_prints(text: str) -> None:
    assert printable(text).isprintable()


@given(st.text(alphabet=st.characters(categories=("L", "N"))))
def test_printable_leaves_letters_alone(text: str) -> None:
    assert printable(text) == text


@given(st.text(), st.integers(0, 40))
def test_short_text_is_never_longer_than_asked(text: str, width: int) -> None:
    short = shorten(text, width)
    assert len(short) <= width
    assert short == text or "…" in short or width == 0


@pytest.mark.parametrize(
    ("value", "reach", "said"),
    [
        (732_000.0, 1_273_000.0, "≈ 730 µs"),
        (102.0, 4_866.0, "< 5 µs"),
        (0.0, 1_203.0, "< 1.3 µs"),
        (5.0, 5.0, "≈ 5 ns"),
        (0.01, 0.03, "< 0.04 ns"),
        (600.0, 399.0, "600 ns"),
        (600.0, 650.0, "≈ 600 ns"),
        (999.7, 1_500.0, "≈ 1 µs"),
        (600.0, 1_250.0, "< 1.9 µs"),
        (1e9, 4e12, "< 4,100 s"),
        (0.0, 0.0, "0 ns"),
    ],
)
def test_what_is_hardly_known_has_two_digits(value: float, reach: float, said: str) -> None:
    assert bounded(value, reach) == said


def test_what_cannot_be_beyond_something_is_not_said_to_be() -> None:
    assert bounded(102.0, 4_866.0, 900.0) == "< 900 ns"
    assert bounded(102.0, 4_866.0, 250.0) == "≈ 100 ns"
    assert bounded(300.0, 4_866.0, 250.0) == "< 250 ns"
    assert bounded(300.0, 20.0, 250.0) == "300 ns"  # that is known, whatever is said around it
    assert share(0.2, 3.0, 0.7) == "< 70 %"
    assert share(0.2, 3.0, 0.4) == "≈ 20 %"
    assert share(1.2, 3.0, 0.4) == "< 40 %"


@given(st.floats(1e-3, 1e12), st.floats(2.01, 1e3))
def test_a_bound_is_never_below_the_interval_and_hardly_above(value: float, times: float) -> None:
    text, _, unit = estimate(value, value * times)
    scale = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}[unit]
    bound = float(text.removeprefix("< ").replace(",", "")) * scale
    assert value * (1 + times) <= bound * (1 + 1e-5)
    assert bound <= value * (1 + times) * 1.11


def test_an_interval_cut_at_zero_reaches_as_far_as_its_longer_side() -> None:
    assert margin(100.0, 0.0, 4_966.0) == 4_866.0
    assert margin(100.0, None, 120.0) is margin(None, 0.0, 1.0) is None


@pytest.mark.parametrize(
    ("part", "reach", "said"),
    [
        (0.5, None, "50.0 %"),
        (0.5, 0.4, "50.0 %"),
        (0.01, 0.03, "< 4 %"),
        (0.0123, 0.02, "≈ 1.2 %"),
        (0.0, 0.0005, "<0.1 %"),
        (0.6, 0.7, "≈ 60 %"),
        (0.3, 0.9, "?"),
        (3.48, None, "?"),
        (3.48, 9.0, "?"),
        (1.02, 0.05, "≈ 100 %"),
        (1.02, 0.01, "?"),
        (1.0, 0.0, "100.0 %"),
        (0.0, 0.0, "0.0 %"),
        (None, None, ""),
    ],
)
def test_shares_are_never_more_than_all(part: float, reach: float, said: str) -> None:
    assert share(part, reach) == said


@given(st.floats(0, 1e150), st.floats(0, 1e150))
def test_what_is_in_common_is_taken_off_as_a_square(reach: float, common: float) -> None:
    expected = math.sqrt(max(reach**2 - common**2, 0.0))
    near = max(reach * 1e-6, 1e-150)  # squares of less are too small for a number
    assert beyond(reach, common) == pytest.approx(expected, rel=1e-3, abs=near)
