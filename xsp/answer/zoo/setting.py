"""Settings: parses lists of values as they are written on a command line.

1,2,4   →  1, 2, 4        1..8  →  1, 2, 4, 8        seq=128,512  →  sequence: 128, 512
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping

from xsp.measuring.target import PRECISIONS, Value, known_frameworks
from xsp.text import suggest

_RANGE = ".."
_SHORT = {"seq": "sequence"}
_OPTIONS = {
    "batch": "--batch",
    "threads": "--threads",
    "precision": "--precision",
    "compiled": "--compile",
    "device": "--device",
    "framework": "--framework",
}
# Parameters of functions, and sizes as models name them: `past_length + 1`, `unk__3`.
_NAME = re.compile(r"[^\W\d][^=,]*")
_COMPILED = {"no": False, "yes": True}


def numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of a list, in ascending order and each once.

    Args:
        text: Numbers from 1 with commas between; `4..64` are 4 and its doublings up to 64.

    Raises:
        ValueError: A part is no such number, or there is none.

    >>> numbers("1,2,4"), numbers("4..32"), numbers("1..6,3")
    ((1, 2, 4), (4, 8, 16, 32), (1, 2, 3, 4, 6))
    """
    return tuple(sorted({number for part in _parts(text) for number in _range(part)}))


def precisions(text: str) -> tuple[str, ...]:
    """Return the element types of a list, in its order and each once.

    Raises:
        ValueError: A name is none of `PRECISIONS`, or there is none.
    """
    names = tuple(dict.fromkeys(_parts(text)))
    for name in names:
        if name not in PRECISIONS:
            known = ", ".join(PRECISIONS)
            raise ValueError(f"there is no precision {name!r}{suggest(name, PRECISIONS)}: {known}")
    return names


def frameworks(text: str) -> tuple[str, ...]:
    """Return the frameworks of a list, in its order and each once.

    Raises:
        ValueError: A name is none of a framework that runs models, or there is none.
    """
    names, known = tuple(dict.fromkeys(_parts(text))), known_frameworks()
    for name in names:
        if name not in known:
            close = suggest(name, known)
            raise ValueError(f"there is no framework {name!r}{close}: {', '.join(known)}")
    return names


def ways_to_run(text: str) -> tuple[bool, ...]:
    """Return whether to compile: False for each `no` and True for each `yes` of a list.

    Raises:
        ValueError: A part is neither, or there is none.
    """
    parts = tuple(dict.fromkeys(_parts(text)))
    for part in parts:
        if part not in _COMPILED:
            raise ValueError(f"{part!r} is neither no (eager) nor yes (compiled)")
    return tuple(_COMPILED[part] for part in parts)


def wished(texts: Iterable[str], *, literal: bool = False) -> dict[str, tuple[Value, ...]]:
    """Return the values of further settings by name, from texts such as `seq=128,512`.

    Args:
        texts: A name with values each.
        literal: Whether names are those of a function's parameters or of a model's sizes, which
            are never short forms.

    Raises:
        ValueError: A text is no name with values, a name stands twice, or has its own option.

    >>> wished(["seq=128,512", "mode=fast"])
    {'sequence': (128, 512), 'mode': ('fast',)}
    """
    found: dict[str, tuple[Value, ...]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.strip()
        name = name if literal else _SHORT.get(name, name)
        if not equals or not _NAME.fullmatch(name):
            raise ValueError(f"{text!r} is no setting: write NAME=VALUE,VALUE, as in seq=128,512")
        if name in _OPTIONS:
            raise ValueError(f"{name} has an option of its own: {_OPTIONS[name]} {values}")
        if name in found:
            raise ValueError(f"{name} stands twice: write all values behind one {name}=")
        found[name] = tuple(dict.fromkeys(_value(part) for part in _parts(values)))
    return found


def single(texts: Iterable[str], *, literal: bool = False) -> tuple[tuple[str, Value], ...]:
    """Return further settings as `wished` does, of one value each.

    Raises:
        ValueError: As of `wished`, or a setting has several values.

    >>> single(["seq=128", "mode=fast"])
    (('sequence', 128), ('mode', 'fast'))
    """
    found = wished(texts, literal=literal)
    for name, values in found.items():
        if len(values) > 1:
            raise ValueError(
                f"{name} has several values ({', '.join(map(str, values))}): xsp sweep measures "
                "each of them"
            )
    return tuple((name, value) for name, (value,) in found.items())


def combinations(axes: Mapping[str, tuple[Value, ...]]) -> Iterator[dict[str, Value]]:
    """Yield every combination of the values of several settings, the last varying fastest.

    >>> list(combinations({"a": (1, 2), "b": (3,)}))
    [{'a': 1, 'b': 3}, {'a': 2, 'b': 3}]
    """
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def _parts(text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise ValueError(f"{text!r} has an empty place: write values with commas between")
    return parts


def _range(part: str) -> Iterator[int]:
    """Yield a number, or a range's first and its doublings, and its last."""
    first, dots, last = part.partition(_RANGE)
    number, end = _number(first), _number(last if dots else first)
    if end < number:
        raise ValueError(f"{part!r} ends before it begins")
    while number < end:
        yield number
        number *= 2
    yield end


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError(f"{text!r} is no whole number from 1, such as 8, or 1..64 with doublings")
    return int(text)


def _value(text: str) -> Value:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
