"""Writes headings of columns and texts of values for people.

A column bears its unit at the end of its name, which is how the text's unit is known. The ends of
the interval of `latency_ns` are the columns `latency_low_ns` and `latency_high_ns`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from xsp.text import NOTHING, duration, margin, printable

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")
_UNITS = {"_j": "J", "_w": "W", "_mhz": "MHz", "_c": "°C"}
_DECIMAL = ("", "k", "M", "G", "T", "P")
# What a heading leaves out, for the cells have a unit of their own.
_SUFFIXES = ("_ns", "_bytes_per_s", "_bytes", "_flops_per_s", "_pct", "_hz", *_UNITS)


def heading_of(column: str) -> str:
    """Return the heading of a column, without the unit that its cells have.

    >>> heading_of("latency_ns"), heading_of("share_pct"), heading_of("module_path")
    ('latency', 'share %', 'module path')
    """
    for suffix in _SUFFIXES:
        if column.endswith(suffix) and column != suffix[1:]:
            return column.removesuffix(suffix).replace("_", " ") + " %" * (suffix == "_pct")
    return column.replace("_", " ")


def text_of(column: str, value: Any) -> str:
    """Return a value as people read it, in the unit that suits its size.

    >>> text_of("latency_ns", 41_234_567.0), text_of("read_bytes", 3 << 20), text_of("flops", 2e9)
    ('41.2 ms', '3.00 MiB', '2.00 G')
    >>> text_of("share_pct", 12.345), text_of("count", 7), text_of("shape", None)
    ('12.3', '7', '—')
    """
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return _number(column, value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(text_of(column, part) for part in value)
    return printable(str(value))


def ends_of(columns: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return the columns that have an interval, each with those of its lower and upper end.

    >>> ends_of(["latency_ns", "latency_low_ns", "latency_high_ns", "runs"])
    {'latency_ns': ('latency_low_ns', 'latency_high_ns')}
    """
    found = {}
    for low in columns:
        name, high = low.replace("_low_", "_", 1), low.replace("_low_", "_high_", 1)
        if name != low and name in columns and high in columns:
            found[name] = low, high
    return found


def estimate_of(column: str, value: Any, low: Any = None, high: Any = None) -> str:
    """Return a value with the reach of its interval; one end of it where no more is known.

    A difference may be of either sign, so the reach of one that is not known stands beside it.

    >>> estimate_of("latency_ns", 41.2e6, 40e6, 42e6), estimate_of("own_ns", 5e3, 0.0, 9e5)
    ('41.2 ms ± 2.9 %', '< 900 µs')
    >>> estimate_of("difference_ns", -5e6, -6e6, -4e6), estimate_of("difference_ns", 1e3, -2e3, 4e3)
    ('-5.00 ms ± 20 %', '1.00 µs ± 3.00 µs')
    >>> estimate_of("gain_pct", 8.1, 7.0, 9.2), estimate_of("rate_per_s", 5.0, 2.0, None)
    ('8.1 ± 1.1', '> 2/s')
    """
    text, reach = text_of(column, value), margin(value, low, high)
    if reach is None:
        return text if low is None or value is None else f"> {text_of(column, low)}"
    if column.endswith("_pct"):
        return f"{text} ± {text_of(column, reach)}"
    if not reach:
        return text
    if abs(value) > reach:
        part = 100 * reach / abs(value)
        return f"{text} ± {f'{part:.2g}' if part < 99.5 else '100'} %"
    return f"{text} ± {text_of(column, reach)}" if low < 0 else f"< {text_of(column, high)}"


def _number(column: str, value: float) -> str:
    if column.endswith("_pct"):
        return "<0.1" if 0 < value < 0.05 else f"{value:,.1f}"
    if column.endswith("_ns"):
        return duration(value)
    if column.endswith(("_bytes", "_bytes_per_s")):
        return _scaled(value, 1024.0, _BINARY) + "/s" * column.endswith("_per_s")
    if column.endswith(("flops", "_per_s")):
        return _scaled(value, 1000.0, _DECIMAL) + "/s" * column.endswith("_per_s")
    for suffix, unit in _UNITS.items():
        if column.endswith(suffix):
            small = 0 < abs(value) < 1
            return f"{1000 * value:.3g} m{unit}" if small else f"{value:,.4g} {unit}"
    plain = f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else plain


def _scaled(value: float, base: float, units: Sequence[str]) -> str:
    """Return a value in the largest unit in which it is at least 1, in three digits.

    >>> _scaled(999_999.0, 1000.0, _DECIMAL), _scaled(0, 1024.0, _BINARY)
    ('1.00 M', '0 B')
    """
    power = 0
    while power + 1 < len(units) and abs(value) >= base * 0.9995:
        value, power = value / base, power + 1
    if not power and float(value).is_integer():
        return f"{value:.0f} {units[0]}".rstrip()
    size = abs(float(f"{value:.3g}"))  # 999,999 is rounded to a million, and has its decimals
    decimals = max(0, 2 - math.floor(math.log10(size))) if value else 0
    return f"{value:.{decimals}f} {units[power]}".rstrip()
