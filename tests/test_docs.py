"""The reference is made from the code: every table that a page asks for is one."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
ASKED = sorted(
    {
        asked
        for page in DOCS.glob("*.md")
        for asked in re.findall(r"^```\{generated\} (.+)$", page.read_text("utf-8"), re.M)
    }
)


@pytest.mark.parametrize("asked", ASKED)
def test_a_page_gets_the_table_that_it_asks_for(
    asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    made = __import__("generated").MADE
    what, _, which = asked.partition(" ")
    head, rule, *rows = made[what](which).splitlines()
    assert set(rule) == {"|", "-"}
    assert rows
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {head.count("|")}
    sys.modules.pop("generated", None)


def codes() -> Iterator[str]:
    """Return the code of every warning that the code can give."""
    makers = ("Problem", "WarningCount", "problem", "Warning", "WarningCount", "warning")
    for path in (path for folder in ("xsp", "levels") for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                name = ast.unparse(node.func).rpartition(".")[2]
                code = str(node.args[0].value)
                if name in makers and re.fullmatch("[a-z]+(?:-[a-z]+)*", code):
                    yield code


def test_each_warning_says_whether_to_trust_the_numbers_and_what_to_do() -> None:
    page = (DOCS / "warnings.md").read_text("utf-8")
    entries = dict(re.findall(r"^### ([a-z-]+)\n\n(.*?)(?=^#|\Z)", page, re.M | re.S))
    assert sorted(set(codes()) - {*entries}) == []
    for code, text in entries.items():
        assert "- Trust it? " in text, code
        assert "- What to do: " in text, code


def test_the_site_has_every_page() -> None:
    listed = set(re.findall(r"^([a-z-]+)$", (DOCS / "index.md").read_text("utf-8"), re.M))
    pages = {page.stem for page in DOCS.glob("*.md")} - {"index"}
    assert listed >= pages
