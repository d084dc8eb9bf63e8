"""Enumerates the levels of the stack and the kinds of span, and parses names of levels."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum, StrEnum

from xsp.text import suggest


class Level(IntEnum):
    """A layer of the stack, from the model down to the operating system."""

    MODEL = 1
    FRAMEWORK = 2
    LIBRARY = 3
    KERNEL = 4
    SYSTEM = 5

    @property
    def label(self) -> str:
        """Spelling used in arguments, files and attributes: `"framework"`."""
        return self.name.lower()


class Kind(StrEnum):
    """The kind of a span. The members are listed from outside in."""

    REGION = "region"
    LAYER = "layer"
    OP = "op"
    CALL = "call"
    LAUNCH = "launch"
    KERNEL = "kernel"
    MEMCPY = "memcpy"
    MEMSET = "memset"
    SYNC = "sync"
    SYSCALL = "syscall"

    @classmethod
    def _missing_(cls, value: object) -> Kind | None:
        return cls.REGION if value == "pipeline" else None  # its name in files of format 1

    @property
    def level(self) -> Level:
        """Level of the stack that spans of this kind belong to."""
        return _LEVELS[self]

    @property
    def order(self) -> int:
        """Position from outside in, from 0; kinds that share a pass share a position."""
        return _ORDERS[self]


_PASSES: tuple[tuple[Level, tuple[Kind, ...]], ...] = (
    (Level.MODEL, (Kind.REGION,)),
    (Level.FRAMEWORK, (Kind.LAYER,)),
    (Level.FRAMEWORK, (Kind.OP,)),
    (Level.LIBRARY, (Kind.CALL,)),
    (Level.KERNEL, (Kind.LAUNCH, Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET, Kind.SYNC)),
    (Level.SYSTEM, (Kind.SYSCALL,)),
)
_LEVELS = {kind: level for level, kinds in _PASSES for kind in kinds}
_ORDERS = {kind: order for order, (_, kinds) in enumerate(_PASSES) for kind in kinds}

# Kinds that keep a device busy; a synchronization only waits for the device.
DEVICE_ACTIVITIES = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)

# A trace says of each level that was asked for either this, or why the level is missing.
MEASURED = "measured"

LevelSet = int | str | Level | Iterable[int | str | Level]

# What users call the spans of a level, as the tree does; `layers` leaves out the operators.
_SPANS = {
    "region": Level.MODEL,
    "layer": Level.FRAMEWORK,
    "op": Level.FRAMEWORK,
    "operator": Level.FRAMEWORK,
    "call": Level.LIBRARY,
    "kernel": Level.KERNEL,
    "syscall": Level.SYSTEM,
}
_LAYERS = ("layer", "layers")


def parse_level(spec: int | str | Level) -> Level:
    """Find the level that a number, a name or a kind of span stands for.

    >>> parse_level(2).label, parse_level("library").label, parse_level("ops").label
    ('framework', 'library', 'framework')

    Raises:
        ValueError: There is no such level; the message lists all levels.
        TypeError: `spec` is neither a number nor a name.
    """
    if isinstance(spec, str):
        word = spec.strip().lower()
        for level in Level:
            if word in (level.label, str(int(level))):
                return level
        if kind := _SPANS.get(word) or _SPANS.get(word.removesuffix("s")):
            return kind
    elif isinstance(spec, int) and not isinstance(spec, bool):
        if spec in Level.__members__.values():
            return Level(spec)
    else:
        raise TypeError(f"A level is a number or a name, not {spec!r}. {_choices()}")
    names = (*(level.label for level in Level), *(f"{kind}s" for kind in _SPANS))
    raise ValueError(
        f"Unknown level {spec!r}{suggest(str(spec), names)}. {_choices()}".replace("?.", "?")
    )


def parse_levels(spec: LevelSet) -> frozenset[Level]:
    """Find the set of levels that the argument `levels=` asks for.

    A single number or name means that level and all levels above; several mean exactly those
    levels. The model level is always in the set, because the root is a span of it.

    >>> sorted(level.label for level in parse_levels(2))
    ['framework', 'model']
    >>> sorted(level.label for level in parse_levels(("model", "kernel")))
    ['kernel', 'model']

    Raises:
        ValueError: A level is unknown, or `spec` is empty.
        TypeError: `spec` is not a level or a collection of levels.
    """
    if isinstance(spec, str) and "," in spec:
        spec = [part for part in spec.split(",") if part.strip()]
    if isinstance(spec, (int, str)):
        deepest = parse_level(spec)
        return frozenset(level for level in Level if level <= deepest)
    if not isinstance(spec, Iterable):
        raise TypeError(f"levels= takes a level or several, not {spec!r}. {_choices()}")
    levels = frozenset(parse_level(part) for part in spec)
    if not levels:
        raise ValueError(f"levels= names no level. {_choices()}")
    return levels | {Level.MODEL}


def wants_operators(spec: LevelSet) -> bool:
    """Tell whether `levels=` asks for the operators of the framework, not for its layers alone.

    >>> wants_operators("layers"), wants_operators(("layers", "ops")), wants_operators(2)
    (False, True, True)
    """
    parts = spec.split(",") if isinstance(spec, str) else spec
    if isinstance(parts, int):
        return True
    words = [str(part).strip().lower() for part in parts]
    others = {
        level
        for word, level in zip(words, map(parse_level, parts), strict=True)
        if word not in _LAYERS
    }
    return not any(word in _LAYERS for word in words) or Level.FRAMEWORK in others


def _choices() -> str:
    return (
        "Choose 1 (model), 2 (framework: layers, ops), 3 (library: calls), 4 (kernel) or "
        "5 (system)."
    )
