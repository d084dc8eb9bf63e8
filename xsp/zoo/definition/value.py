"""Values: what stands behind a key of a zoo file, or an option, in; what it means out.

Each function raises `ValueError`, with what is wrong and what is possible, for all else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from xsp import sweep
from xsp.level import Level, parse_levels
from xsp.target import Value

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]i?|)B?\s*")


def text(value: Any) -> str:
    """Return a text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{_said(value)} is no text in quotation marks")
    return value


def texts(value: Any) -> tuple[str, ...]:
    """Return one text, or the texts of a list, each once."""
    found = tuple(dict.fromkeys(text(each) for each in _list(value)))
    if not found:
        raise ValueError("the list is empty")
    return found


def boolean(value: Any) -> bool:
    """Return true or false."""
    if value is True or value is False:
        return value
    raise ValueError(f"{_said(value)} is neither true nor false")


def positive(value: Any) -> float:
    """Return a number above 0."""
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not 0 < value < float("inf")
    ):
        raise ValueError(f"{_said(value)} is no number above 0")
    return float(value)


def count(value: Any) -> int:
    """Return a whole number from 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{_said(value)} is no whole number from 1")
    return value


def counts(value: Any) -> tuple[int, ...]:
    """Return whole numbers from 1, ascending: one, a list, or a text such as `1..64`.

    >>> counts([8, 1]), counts("1..4"), counts([])
    ((1, 8), (1, 2, 4), ())
    """
    if isinstance(value, str):
        return sweep.numbers(value)
    return tuple(sorted({count(each) for each in _list(value)}))


def precisions(value: Any) -> tuple[str, ...]:
    """Return element types: one, a list, or a text with commas between."""
    return sweep.precisions(",".join(texts(value)))


def frameworks(value: Any) -> tuple[str, ...]:
    """Return frameworks: one, a list, or a text with commas between."""
    return sweep.frameworks(",".join(texts(value)))


def ways_to_run(value: Any) -> tuple[bool, ...]:
    """Return whether to compile: true, false, both in a list, or a text such as `no,yes`."""
    if isinstance(value, str):
        return sweep.ways_to_run(value)
    found = tuple(dict.fromkeys(boolean(each) for each in _list(value)))
    if not found:
        raise ValueError("the list is empty")
    return found


def levels(value: Any) -> frozenset[Level]:
    """Return levels: the deepest one by number or name, or a list of just those wanted."""
    try:
        return parse_levels(value)
    except TypeError as error:
        raise ValueError(str(error).removeprefix("levels= ")) from error


def memory(value: Any) -> int:
    """Return bytes, of a text such as `8 GiB` or a number of bytes.

    >>> memory("8 GiB"), memory("500MB"), memory(1024)
    (8589934592, 500000000, 1024)
    """
    found = _SIZE.fullmatch(value if isinstance(value, str) else str(count(value)))
    size = round(float(found[1]) * _UNITS[found[2]]) if found else 0
    if not size:
        raise ValueError(f'{_said(value)} is no size of memory: write "8 GiB", or "500 MB"')
    return size


def percentage(value: Any) -> float:
    """Return a number from 0 to 100."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 <= value <= 100:
        raise ValueError(f"{_said(value)} is no percentage: a number from 0 to 100")
    return float(value)


def percentages(value: Any) -> float | dict[str, float]:
    """Return a percentage, or those of several models by their names."""
    return _each(value, percentage) if isinstance(value, Mapping) else percentage(value)


def facts(value: Any) -> dict[str, Value]:
    """Return texts and numbers by name."""
    return _each(_table(value), _scalar)


def settings(value: Any) -> dict[str, tuple[Value, ...]]:
    """Return values, one or a list, of settings by name."""
    return _each(_table(value), lambda said: tuple(_scalar(each) for each in _list(said)))


def _each(value: Mapping[str, Any], read: Callable[[Any], Any]) -> dict[str, Any]:
    found = {}
    for name, said in value.items():
        try:
            found[name] = read(said)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    return found


def _scalar(value: Any) -> Value:
    if isinstance(value, (bool, int, float, str)):
        return value
    raise ValueError(f"{_said(value)} is neither a number nor a text, nor true or false")


def _table(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    raise ValueError(f"{_said(value)} is no table: write {{ name = value }}")


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _said(value: Any) -> str:
    """Return a value as TOML writes it, shortened."""
    said = {True: "true", False: "false"}.get(value) if isinstance(value, bool) else None
    return said or f"{value!r:.60}"
