from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest

from xsp.level import Kind
from xsp.trace.attribute import (
    ATTRIBUTES,
    EXPORTED,
    SCHEMA_URL,
    Attribute,
    attribute_column,
    find_attribute,
)
from xsp.trace.document import SPAN_SCHEMA

DOCS = Path(__file__).parents[2] / "docs"


def table(heading: str) -> list[list[str]]:
    """Return the cells of the table under a heading of the page, without its head."""
    section = (DOCS / "trace.md").read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_documented_columns_are_those_of_a_trace_in_order() -> None:
    expected = [(f"`{name}`", f"`{dtype}`") for name, dtype in SPAN_SCHEMA.items()]
    assert [(row[0], row[1]) for row in table("Columns")] == [
        *expected,
        ("`attributes`", "`Struct`"),
    ]


def test_every_column_has_a_meaning_and_times_have_their_unit() -> None:
    for name, _, unit, meaning in table("Columns"):
        assert meaning.endswith(".")
        assert unit == ("ns" if name.endswith("_ns`") else "")


@pytest.mark.parametrize("known", ATTRIBUTES, ids=lambda known: known.name)
def test_attribute_is_well_described(known: Attribute) -> None:
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", known.name)
    assert known.kinds
    assert known.meaning.endswith(".")
    assert isinstance(eval(known.type, vars(pl) | {"__builtins__": {}}), (pl.DataType, type))


@pytest.mark.parametrize("known", ATTRIBUTES, ids=lambda known: known.name)
def test_unit_is_the_one_that_the_name_ends_with(known: Attribute) -> None:
    for unit in ("ns", "bytes"):
        assert known.name.endswith(f"_{unit}") == (known.unit == unit)


def test_names_are_unique() -> None:
    assert len({known.name for known in ATTRIBUTES}) == len(ATTRIBUTES)


def test_attribute_is_found_by_name_and_the_users_own_is_not() -> None:
    found = find_attribute("module_class")
    assert found is not None
    assert found.kinds == (Kind.LAYER,)
    assert find_attribute("batch") is None


def test_exported_names_are_unique_and_of_a_known_namespace() -> None:
    names = [one.name for one in EXPORTED] + [known.exported for known in ATTRIBUTES]
    assert len(set(names)) == len(names)
    standard = {"thread.id", "error.type", "code.function.name"}
    standard |= {"code.file.path", "code.line.number"}
    standard |= {"gen_ai.operation.name", "gen_ai.request.model"}
    standard |= {"gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"}
    standard |= {"gen_ai.response.time_to_first_chunk"}
    assert {name for name in names if not name.startswith("xsp.")} == standard


def test_schema_url_names_a_schema_file() -> None:
    version = SCHEMA_URL.rpartition("/")[2]
    assert f"schema_url: {SCHEMA_URL}\n" in (DOCS / "schema" / version).read_text()


def test_field_that_is_missing_or_of_another_type_is_null() -> None:
    spans = pl.DataFrame({"attributes": [{"phase": 3}, {"phase": 4}]})
    assert attribute_column(spans, "phase").null_count() == 2
    assert attribute_column(spans, "nothing").null_count() == 2
    assert attribute_column(spans, "phase", pl.Int64).to_list() == [3, 4]
