"""Levels of the stack and kinds of span: numbers and names in, enumerations out."""

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

    PIPELINE = "pipeline"
    LAYER = "layer"
    OP = "op"
    CALL = "call"
    LAUNCH = "launch"
    KERNEL = "kernel"
    MEMCPY = "memcpy"
    MEMSET = "memset"
    SYNC = "sync"
    SYSCALL = "syscall"

    @property
    def level(self) -> Level:
        """Level of the stack that spans of this kind belong to."""
        return _LEVELS[self]

    @property
    def order(self) -> int:
        """Position from outside in, from 0; kinds that share a rung share a position."""
        return _ORDERS[self]


_RUNGS: tuple[tuple[Level, tuple[Kind, ...]], ...] = (
    (Level.MODEL, (Kind.PIPELINE,)),
    (Level.FRAMEWORK, (Kind.LAYER,)),
    (Level.FRAMEWORK, (Kind.OP,)),
    (Level.LIBRARY, (Kind.CALL,)),
    (Level.KERNEL, (Kind.LAUNCH, Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET, Kind.SYNC)),
    (Level.SYSTEM, (Kind.SYSCALL,)),
)
_LEVELS = {kind: level for level, kinds in _RUNGS for kind in kinds}
_ORDERS = {kind: order for order, (_, kinds) in enumerate(_RUNGS) for kind in kinds}

# Kinds that keep a device busy; a synchronisation only waits for the device.
DEVICE_ACTIVITIES = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)

# A trace says of each level that was asked for either this, or why the level is missing.
MEASURED = "measured"

LevelSet = int | str | Level | Iterable[int | str | Level]


def parse_level(spec: int | str | Level) -> Level:
    """Return the level that a number or a name stands for.

    Raises:
        ValueError: There is no such level; the message lists all levels.
        TypeError: `spec` is neither a number nor a name.
    """
    if isinstance(spec, str):
        for level in Level:
            if spec.strip().lower() in (level.label, str(int(level))):
                return level
    elif isinstance(spec, int) and not isinstance(spec, bool):
        if spec in Level.__members__.values():
            return Level(spec)
    else:
        raise TypeError(f"a level is a number or a name, not {spec!r}; {_choices()}")
    said = spec if str(spec).isdigit() else repr(spec)
    meant = suggest(str(spec), (level.label for level in Level))
    raise ValueError(f"there is no level {said}; {_choices()}{meant}")


def parse_levels(spec: LevelSet) -> frozenset[Level]:
    """Return the set of levels that the argument `levels=` asks for.

    A single number or name means that level and all levels above; several mean exactly those
    levels. The model level is always in the set, for the root is a span of it.

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
        raise TypeError(f"levels= takes a level or several, not {spec!r}; {_choices()}")
    levels = frozenset(parse_level(part) for part in spec)
    if not levels:
        raise ValueError(f"levels= names no level; {_choices()}")
    return levels | {Level.MODEL}


def _choices() -> str:
    known = ", ".join(f"{int(level)} ({level.label})" for level in Level)
    return f"the levels are {known}"
