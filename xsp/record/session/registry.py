"""Loads and lists the providers that entry points of the group `xsp.levels` name.

Each provider is validated. An entry point that cannot be imported, or whose object breaks the
contract, is kept as `Broken`, with the reason, and never stops the others.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from xsp.errors import ProviderError, guarded
from xsp.level import Kind, Level
from xsp.provider import Monitor, Provider, SelfDiagnosing

GROUP = "xsp.levels"

# Methods of the contract, with the number of arguments that each is called with.
_METHODS = {"unavailable": 0, "start": 2, "stop": 0, "spans": 1}


@dataclass(frozen=True, slots=True)
class Broken:
    """An entry point that gave no provider.

    Attributes:
        name: The entry point's name.
        reason: One sentence that says what is wrong with which object.
    """

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Listed:
    """One line of the list of providers.

    Attributes:
        name: The provider's name; of a broken entry point the name of that.
        level: Level that the provider observes; None for a broken entry point.
        kinds: Kinds of span that the provider emits, from outside in.
        reason: Why the provider cannot be used here, and what would change that; None if it can.
        remark: How exact the provider is here (`SelfDiagnosing`); None if it does not say.
    """

    name: str
    level: Level | None
    kinds: tuple[Kind, ...]
    reason: str | None
    remark: str | None = None


def installed_providers() -> tuple[Provider, ...]:
    """Return every valid provider, sorted by level and name, whether it can work here or not.

    The same objects are returned each time.
    """
    return tuple(entry for entry in _entries() if not isinstance(entry, Broken))


def broken() -> tuple[Broken, ...]:
    """Return the entry points that gave no provider."""
    return tuple(entry for entry in _entries() if isinstance(entry, Broken))


def listed_providers() -> tuple[Listed, ...]:
    """Return one line per provider, the broken ones last."""
    lines = (_listed(provider) for provider in installed_providers())
    return (*lines, *(Listed(entry.name, None, (), entry.reason) for entry in broken()))


def unavailable(provider: Provider) -> str | None:
    """Return why a provider cannot work here, also if asking it raised; None if it can."""
    failed = f"provider {provider.name!r} failed when asked whether it can work"
    return guarded(provider.unavailable, lambda error: f"{failed}: {_said(error)}")


def _listed(provider: Provider) -> Listed:
    reason = unavailable(provider)
    kinds = tuple(kind for kind in Kind if kind in provider.kinds)
    remark = None
    if reason is None and isinstance(provider, SelfDiagnosing):
        failed = "failed when asked how exact it is"
        remark = guarded(provider.remark, lambda error: f"{failed}: {_said(error)}")
    return Listed(provider.name, provider.level, kinds, reason, remark)


def validate(candidate: object) -> Provider:
    """Return `candidate`, an object of any type, if it keeps the contract of a provider.

    Raises:
        ProviderError: The object breaks the contract; the message names every fault.
    """
    faults = list(_faults(candidate))
    if faults or not isinstance(candidate, Provider):
        what = f"{type(candidate).__module__}.{type(candidate).__qualname__}"
        raise ProviderError(f"{what} is not a provider (see xsp.provider): {'; '.join(faults)}")
    return candidate


_Entries = tuple[Provider | Broken, ...]

_overrides: list[_Entries] = []


@contextmanager
def registered(candidates: Iterable[Provider], *, alone: bool) -> Iterator[None]:
    """Register providers for the duration of a `with` block (see `xsp.testing`).

    Args:
        candidates: The providers; each takes the place of a registered provider of its name.
        alone: Whether no other provider is registered meanwhile.

    Raises:
        ProviderError: A provider breaks the contract.
    """
    extra = tuple(validate(candidate) for candidate in candidates)
    names = {provider.name for provider in extra}
    others = () if alone else tuple(entry for entry in _entries() if entry.name not in names)
    _overrides.append(_in_order((*others, *extra)))
    try:
        yield
    finally:
        _overrides.pop()


def _entries() -> _Entries:
    return _overrides[-1] if _overrides else _installed()


@cache
def _installed() -> _Entries:
    return load(entry_points(group=GROUP))


def load(points: Iterable[EntryPoint]) -> _Entries:
    """Return the provider of each entry point, or `Broken` with the reason why there is none."""
    found: list[Provider | Broken] = []
    names: set[str] = set()
    for point in points:
        entry = _loaded(point)
        if not isinstance(entry, Broken):
            if entry.name in names:
                reason = f"{point.value} calls itself {entry.name!r}, as another provider does"
                entry = Broken(point.name, reason)
            names.add(entry.name)
        found.append(entry)
    return _in_order(found)


def _loaded(point: EntryPoint) -> Provider | Broken:
    def broken(error: Exception) -> Broken:
        failed = f"{point.value} cannot be loaded: {_said(error)}"
        return Broken(point.name, str(error) if isinstance(error, ProviderError) else failed)

    def load() -> Provider | Broken:
        return validate(point.load()())

    return guarded(load, broken)


def _in_order(entries: Iterable[Provider | Broken]) -> _Entries:
    def position(entry: Provider | Broken) -> tuple[int, str]:
        return (len(Level) + 1 if isinstance(entry, Broken) else int(entry.level), entry.name)

    return tuple(sorted(entries, key=position))


def _faults(candidate: object) -> Iterator[str]:
    name = getattr(candidate, "name", None)
    if not isinstance(name, str) or not name:
        yield f"name must be a non-empty string, not {name!r}"
    level = getattr(candidate, "level", None)
    if not isinstance(level, Level):
        yield f"level must be an xsp.level.Level, not {level!r}"
    kinds = getattr(candidate, "kinds", None)
    some = bool(kinds) or isinstance(candidate, Monitor)
    if not isinstance(kinds, frozenset) or not some or not all(isinstance(k, Kind) for k in kinds):
        yield f"kinds must be a frozenset of at least one xsp.level.Kind, not {kinds!r}"
    for method, arguments in _METHODS.items():
        yield from _method_faults(method, getattr(candidate, method, None), arguments)


def _method_faults(name: str, method: object, arguments: int) -> Iterator[str]:
    if not callable(method):
        yield f"method {name} is missing"
        return
    try:
        inspect.signature(method).bind(*[None] * arguments)
    except TypeError:
        yield f"{name} must take {arguments} arguments, but is {name}{inspect.signature(method)}"
    except ValueError:  # written in C without a signature: nothing to compare with
        return


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
