from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xsp.text import (
    duration,
    estimate,
    printable,
    share,
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


@given(st.text())
def test_printable_text_prints(text: str) -> None:
    assert printable(text).isprintable()


@given(st.text(alphabet=st.characters(categories=("L", "N"))))
def test_printable_leaves_letters_alone(text: str) -> None:
    assert printable(text) == text


def test_what_cannot_be_beyond_something_is_not_said_to_be() -> None:
    assert estimate(102.0, 4_866.0, 900.0) == ("< 900", "", "ns")
    assert estimate(102.0, 4_866.0, 250.0) == ("≈ 100", "", "ns")
    assert estimate(300.0, 4_866.0, 250.0) == ("< 250", "", "ns")
    assert estimate(300.0, 20.0, 250.0) == ("300", "20", "ns")  # that is known anyway
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
