from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from xsp.clock import Clock
from xsp.errors import ProviderError
from xsp.level import Kind, Level
from xsp.provider.contract import Provider, Records, Request
from xsp.provider.row import SpanRows, no_rows
from xsp.record.session import registry
from xsp.testing import added_providers, only_providers


class Good:
    name = "good"
    level = Level.LIBRARY
    kinds = frozenset({Kind.CALL})

    def unavailable(self) -> str | None:
        return None

    def start(self, clock: Clock, request: Request) -> None: ...

    def stop(self) -> Records:
        return Records(())

    def spans(self, records: Records) -> SpanRows:
        return no_rows()


class Outer(Good):
    name = "outer"
    level = Level.MODEL
    kinds = frozenset({Kind.REGION})


class Missing(Good):
    name = "missing"

    def unavailable(self) -> str | None:
        return "needs a GPU: run it where there is one"


class Raising(Good):
    name = "raising"

    def unavailable(self) -> str | None:
        raise OSError("no such library")


class WithoutStop(Good):
    stop = None  # type: ignore[assignment]


class OldStart(Good):
    def start(self, clock: Clock) -> None:  # type: ignore[override]
        ...


class Unnamed(Good):
    name = ""


class LevelAsText(Good):
    level = "library"  # type: ignore[assignment]


class WithoutKinds(Good):
    kinds: frozenset[Kind] = frozenset()


class Refusing(Good):
    def __init__(self) -> None:
        raise RuntimeError("not today")


NOT_A_CLASS = 3


def point(name: str, attribute: str) -> EntryPoint:
    return EntryPoint(name, f"{__name__}:{attribute}", registry.GROUP)


def load(*attributes: str) -> tuple[Provider | registry.Broken, ...]:
    return registry.load(point(attribute.lower(), attribute) for attribute in attributes)


def test_entry_points_become_providers_in_the_order_of_their_levels() -> None:
    found = load("Good", "Outer")
    assert [entry.name for entry in found] == ["outer", "good"]
    assert not any(isinstance(entry, registry.Broken) for entry in found)


@pytest.mark.parametrize(
    ("attribute", "reason"),
    [
        ("Refusing", "RuntimeError: not today"),
        ("Absent", "AttributeError"),
        ("NOT_A_CLASS", "TypeError"),
        ("WithoutStop", "method stop is missing"),
        ("OldStart", "start must take 2 arguments"),
        ("Unnamed", "name must be a non-empty string"),
        ("LevelAsText", "level must be an xsp.level.Level, not 'library'"),
        ("WithoutKinds", "kinds must be a frozenset of at least one"),
    ],
)
def test_a_broken_entry_is_kept_with_its_reason_and_stops_no_other(
    attribute: str, reason: str
) -> None:
    good, broken = load(attribute, "Good")
    assert good.name == "good"
    assert isinstance(broken, registry.Broken)
    assert broken.name == attribute.lower()
    assert reason in broken.reason


def test_a_module_that_cannot_be_imported_is_a_broken_entry() -> None:
    (broken,) = registry.load([EntryPoint("x", "no_such_module_of_xsp:X", registry.GROUP)])
    assert isinstance(broken, registry.Broken)
    assert "no_such_module_of_xsp" in broken.reason


def test_the_second_provider_of_a_name_is_broken_and_the_first_stays() -> None:
    first, second = registry.load([point("one", "Good"), point("two", "Good")])
    assert not isinstance(first, registry.Broken)
    assert isinstance(second, registry.Broken)
    assert second.name == "two"
    assert "calls itself 'good'" in second.reason


def test_listing_says_why_a_provider_cannot_work() -> None:
    with only_providers(Good(), Missing(), Raising()):
        reasons = {line.name: line.reason for line in registry.listed_providers()}
    assert reasons["good"] is None
    assert reasons["missing"] == "needs a GPU: run it where there is one"
    assert reasons["raising"] is not None
    assert "OSError: no such library" in reasons["raising"]


def test_the_installed_providers_are_found_and_stay_the_same_objects() -> None:
    names = {line.name for line in registry.listed_providers()}
    assert {"model", "torch"} <= names
    assert not registry.broken()
    assert registry.installed_providers() == registry.installed_providers()


def test_an_added_provider_is_there_for_the_block_only() -> None:
    before = registry.installed_providers()
    with added_providers(Good()):
        assert "good" in {provider.name for provider in registry.installed_providers()}
        assert set(before) < set(registry.installed_providers())
    assert registry.installed_providers() == before


def test_what_is_no_provider_cannot_be_added() -> None:
    with (
        pytest.raises(ProviderError, match=r"WithoutStop is not a provider.*stop is missing"),
        added_providers(WithoutStop()),  # type: ignore[arg-type]
    ):
        pytest.fail("it was added")
