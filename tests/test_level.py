from __future__ import annotations

import pytest

from xsp import measure
from xsp.level import Kind, Level, LevelSet, parse_levels
from xsp.record.session import select, settings_of
from xsp.testing import FakeClock, FakeProvider, only_providers


def test_a_number_means_that_level_and_all_above() -> None:
    assert parse_levels(3) == {Level.MODEL, Level.FRAMEWORK, Level.LIBRARY}


def test_a_name_means_the_same_as_its_number() -> None:
    assert parse_levels("framework") == parse_levels(2) == parse_levels("2")


@pytest.mark.parametrize("wrong", [0, 9, -1, "gpu", "", (), ("model", "gpu"), "model,gpu"])
def test_an_unknown_level_is_refused_with_the_list_of_those_there_are(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"1 \(model\), 2 \(framework: layers, ops\), 3"):
        parse_levels(wrong)  # type: ignore[arg-type]


def test_a_misspelt_level_is_told_what_was_meant() -> None:
    with pytest.raises(
        ValueError, match=r"Unknown level 'framwork'; did you mean framework\? Choo"
    ):
        parse_levels("framwork")
    with pytest.raises(ValueError, match=r"did you mean kernel"):
        parse_levels(("model", "kernls"))


@pytest.mark.parametrize(
    ("kinds", "levels"),
    [("layers", 2), ("ops", 2), ("calls", 3), ("kernels", 4), ("layers,kernels", (1, 2, 4))],
)
def test_kinds_of_span_are_levels_as_well(kinds: str, levels: LevelSet) -> None:
    assert parse_levels(kinds) == parse_levels(levels)


def test_layers_alone_leave_the_operators_out() -> None:
    with only_providers(FakeProvider(FakeClock(), (Kind.LAYER, Kind.OP))):
        trace = measure(lambda: None, levels="layers", runs=1)
    assert Kind.OP not in select_kinds("layers")
    assert trace.ops.height == 0


def select_kinds(levels: LevelSet) -> frozenset[Kind]:
    settings = settings_of(levels)
    with only_providers(FakeProvider(FakeClock(), (Kind.LAYER, Kind.OP))):
        return select(settings.levels, operators=settings.operators).kinds


@pytest.mark.parametrize("wrong", [None, 2.5, True, [None], object()])
def test_what_is_no_level_at_all_is_a_type_error(wrong: object) -> None:
    with pytest.raises(TypeError, match="level"):
        parse_levels(wrong)  # type: ignore[arg-type]
