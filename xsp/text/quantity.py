"""Writes durations, fractions and counts as text for people."""

from __future__ import annotations

import math

_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
NOTHING = "—"
_NEAR = "≈"
_HARDLY = "<0.1 %"
_ABOUT_0 = f"{_NEAR} 0"
_ABOUT = 1.25  # of the whole: a part that seems larger is not known
_TELLING = 3.0  # times the value: an interval up to there tells about how much it is
_MOST = 1e300
_ABSURD = 1e7  # only damaged files hold larger numbers, which must not fill the line


def duration(nanoseconds: float | None) -> str:
    """Return a duration with three significant digits, in the unit that suits its size.

    >>> duration(41_234_567.0), duration(999.7), duration(None), duration(1e300)
    ('41.2 ms', '1.00 µs', '—', '1.00e+291 s')
    """
    if nanoseconds is None or not math.isfinite(nanoseconds):
        return NOTHING
    scale, unit = _unit(nanoseconds)
    return f"{_digits(nanoseconds / scale)} {unit}"


def clock_time(seconds: float) -> str:
    """Return a time in the units of a clock.

    >>> clock_time(8.2), clock_time(125), clock_time(7380)
    ('8 s', '2 min 5 s', '2 h 3 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def removed(overhead_ns: float | None, margin_ns: float | None) -> str:
    """Return an overhead as text; `≈ 0` where it is within the margin of the latency.

    >>> removed(52_900.0, 10_000.0), removed(-52_900.0, 78_000.0), removed(None, None)
    ('52.9 µs', '≈ 0', '')
    """
    if overhead_ns is None:
        return ""
    return _ABOUT_0 if overhead_ns <= (margin_ns or 0.0) else duration(overhead_ns)


def surplus(ns: float | None) -> str:
    """Return by how much one known time is longer than another, as text; `-` where it is shorter.

    >>> surplus(52_900.0), surplus(-52_900.0), surplus(0.4), surplus(None)
    ('52.9 µs', '-52.9 µs', '≈ 0', '')
    """
    if ns is None:
        return ""
    return _ABOUT_0 if abs(ns) < 1.0 else duration(ns)


def margin(value_ns: float | None, low_ns: float | None, high_ns: float | None) -> float | None:
    """Return how far an interval reaches from its value; None where either is not known.

    Intervals end at 0, where half of their width would say too little.

    >>> margin(100.0, 90.0, 110.0), margin(100.0, 0.0, 4_966.0), margin(100.0, None, None)
    (10.0, 4866.0, None)
    """
    if value_ns is None or low_ns is None or high_ns is None:
        return None
    return max(high_ns - value_ns, value_ns - low_ns)


def estimate(
    nanoseconds: float | None, margin_ns: float | None, most_ns: float | None = None
) -> tuple[str, str, str]:
    """Return value, margin and unit of a duration as texts; an unknown margin is empty.

    The margin is given in the value's unit, with two digits and at most one decimal more than
    the value. Where the margin is as large as the value, the value is about known if it cannot be
    more than three times as large; else its upper bound is given instead. Both have two digits and
    no margin. A margin of 0, as of what is counted or of runs that took the clock's same tick, is
    left out. What came out as 0, where overhead was removed, takes some time all the same: about 0.

    Args:
        nanoseconds: The duration.
        margin_ns: Half the width of its interval.
        most_ns: What the duration cannot be beyond, if that is known.

    >>> estimate(12_400_000.0, -1e-9), estimate(0.0, None)  # by rounding errors
    (('12.4', '', 'ms'), ('≈ 0', '', ''))
    >>> estimate(41_234_567.0, 312_000.0), estimate(732.0, 1_273.0), estimate(102.0, 4_866.0)
    (('41.2', '0.31', 'ms'), ('≈ 730', '', 'ns'), ('< 5', '', 'µs'))
    """
    if nanoseconds is None or not math.isfinite(nanoseconds):
        return NOTHING, "", ""
    if margin_ns is None or not math.isfinite(margin_ns):
        if not nanoseconds:
            return _ABOUT_0, "", ""
        scale, unit = _unit(nanoseconds)
        return _digits(nanoseconds / scale), "", unit
    if 0 <= nanoseconds <= margin_ns and margin_ns > 0:
        sign, shown = _vague(nanoseconds, nanoseconds + margin_ns, most_ns or math.inf)
        scale, unit = _unit(shown)
        return f"{sign} {_two_digits(shown / scale)}", "", unit
    scale, unit = _unit(nanoseconds)
    value = _digits(nanoseconds / scale)
    around = (
        _margin(margin_ns / scale, len(value.partition(".")[2]) + 1) if margin_ns >= 1e-3 else ""
    )
    return value, around, unit


def share(part: float | None, margin: float | None = None, most: float = 1.0) -> str:
    """Return a part of the whole as a percentage with one decimal.

    A part whose margin is as large as itself is not known: about, or its upper bound, is given
    (`estimate`). A part a little larger than the whole is the whole, if its margin allows that, and
    else not known.

    Args:
        part: The part, as a fraction.
        margin: Half the width of its interval.
        most: What the part cannot be beyond.

    >>> share(0.07812, 0.002), share(0.07812, 0.1), share(0.001, 0.0123), share(0.2, 3.0)
    ('7.8 %', '≈ 7.8 %', '< 1.4 %', '?')
    >>> share(0.00095, 0.0015), share(0.00002, 0.00003)
    ('≈ 0.095 %', '<0.1 %')
    >>> share(1.03, 0.05), share(3.5)
    ('≈ 100 %', '?')
    """
    if part is None or not math.isfinite(part):
        return ""
    beyond = 0.0 if margin is None or not math.isfinite(margin) else margin
    if 0 <= part <= beyond and beyond > 0 and (part < 1.0005 or most < 1):
        if 0 < min(part + beyond, most) < 0.001:
            return _HARDLY
        sign, shown = _vague(part, part + beyond, most)
        return f"{sign} {_two_digits(100 * shown)} %" if sign == _NEAR or shown < 1 else "?"
    if part >= 1.0005:
        return "≈ 100 %" if part <= min(1 + beyond, _ABOUT) else "?"
    return percent(part)


def beyond(margin_ns: float, common_ns: float) -> float:
    """Return a margin without the part that comes of an error in common with something else.

    Both are parts of one sum of squares.

    >>> round(beyond(5.0, 3.0)), beyond(3.0, 5.0), beyond(-1e-9, 2.0)
    (4, 0.0, 0.0)
    """
    margin_ns = max(margin_ns, 0.0)  # a difference of sums may be below by a rounding error
    common_ns = min(common_ns, margin_ns)
    # The difference of squares, without squares that are too large for a number.
    return float((margin_ns - common_ns) ** 0.5 * (margin_ns + common_ns) ** 0.5)


def percent(part: float | None) -> str:
    """Return a fraction as a percentage with one decimal.

    >>> percent(0.07812), percent(0.0004), percent(None)
    ('7.8 %', '<0.1 %', '—')
    """
    if part is None or not math.isfinite(part):
        return NOTHING
    if 0 < part < 0.0005:
        return _HARDLY
    if abs(part) >= _ABSURD:
        return f"{part * 100:.1e} %"
    return f"{part * 100:.1f} %"


def known_to(part: float) -> str:
    """Return how far a latency is known, given half its interval as a fraction of the latency.

    >>> known_to(0.081), known_to(197.5)
    ('± 8 %', 'more than ± 100 %')
    """
    return f"± {100 * part:.0f} %" if part < 1 else "more than ± 100 %"


def counted(number: int, singular: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "layer"), counted(1200, "layer"), counted(2, "copy")
    ('1 layer', '1,200 layers', '2 copies')
    """
    if number == 1:
        return f"1 {singular}"
    if singular.endswith("y"):
        plural = f"{singular[:-1]}ies"
    else:
        plural = f"{singular}es" if singular.endswith(("ch", "s")) else f"{singular}s"
    return f"{number:,} {plural}"


def _unit(nanoseconds: float) -> tuple[float, str]:
    size = abs(nanoseconds)
    if size == 0:
        return 1.0, "ns"
    # 999.5 and more would round to four digits: the next unit needs three.
    return next((u for u in _UNITS if size >= 0.9995 * u[0]), _UNITS[-1])


def _digits(value: float) -> str:
    size = abs(value)
    if size == 0:
        return "0"
    if size >= _ABSURD:
        return f"{value:.2e}"
    if size >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"


def _vague(value: float, high: float, most: float) -> tuple[str, float]:
    """Write a value that is hardly known: a sign such as `<`, and a number of two digits."""
    bound = min(high, most, _MOST)
    near = value <= bound <= _TELLING * value
    shown = value if near else bound
    step = 10.0 ** (math.floor(math.log10(shown)) - 1)
    digits = round(shown / step) if near else math.ceil(shown / step - 1e-6)
    return _NEAR if near else "<", digits * step


def _two_digits(value: float) -> str:
    if value >= _ABSURD:
        return f"{value:.1e}"
    if value < 0.95:
        return f"{value:.2g}"
    return f"{value:,.0f}" if value >= 9.95 else f"{value:.1f}".removesuffix(".0")


def _margin(value: float, most_decimals: int) -> str:
    if value <= 0:
        return "0"
    if value >= _ABSURD:
        return f"{value:.1e}"
    two_digits = 1 - math.floor(math.log10(value))
    decimals = min(max(two_digits, 0), most_decimals)
    # A margin that would round to 0 is stated as the least number of so many decimals.
    return f"{max(value, 10.0**-decimals):.{decimals}f}"
