from __future__ import annotations

import pytest

from xsp.level import Kind, Level, parse_level, parse_levels


def test_a_number_means_that_level_and_all_above() -> None:
    assert parse_levels(3) == {Level.MODEL, Level.FRAMEWORK, Level.LIBRARY}


def test_a_name_means_the_same_as_its_number() -> None:
    assert parse_levels("framework") == parse_levels(2) == parse_levels("2")


def test_several_mean_exactly_those_and_the_model() -> None:
    assert parse_levels(("framework", "kernel")) == {Level.MODEL, Level.FRAMEWORK, Level.KERNEL}
    assert parse_levels("model,kernel") == {Level.MODEL, Level.KERNEL}


@pytest.mark.parametrize("wrong", [0, 9, -1, "gpu", "", (), ("model", "gpu"), "model,gpu"])
def test_an_unknown_level_is_refused_with_the_list_of_those_there_are(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"1 \(model\), 2 \(framework\), 3 \(library\)"):
        parse_levels(wrong)  # type: ignore[arg-type]


def test_a_misspelt_level_is_told_what_was_meant() -> None:
    with pytest.raises(
        ValueError, match=r"no level 'framwork'; the levels are .*; did you mean framework\?"
    ):
        parse_levels("framwork")
    with pytest.raises(ValueError, match=r"did you mean kernel\?"):
        parse_levels(("model", "kernels"))


@pytest.mark.parametrize("wrong", [None, 2.5, True, [None], object()])
def test_what_is_no_level_at_all_is_a_type_error(wrong: object) -> None:
    with pytest.raises(TypeError, match="level"):
        parse_levels(wrong)  # type: ignore[arg-type]


def test_kinds_are_ordered_from_outside_in() -> None:
    orders = [kind.order for kind in Kind]
    assert orders == sorted(orders)
    assert [kind.level for kind in Kind] == sorted(kind.level for kind in Kind)
    assert Kind.LAUNCH.order == Kind.KERNEL.order > Kind.CALL.order


def test_a_level_is_found_under_every_spelling() -> None:
    for level in Level:
        assert {parse_level(level), parse_level(int(level)), parse_level(level.label.upper())} == {
            level
        }
