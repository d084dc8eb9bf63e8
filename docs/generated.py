"""Makes tables of the reference from the code, where a page says so.

    ```{generated} analysis layer-latency
    ```

It also writes links to files beside docs/, which the site lacks, as their paths in the repository.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import xsp
from xsp import analyses, zoo
from xsp.answer.zoo.row import COLUMNS
from xsp.inexact import Inexact
from xsp.layer_type import MEANINGS, TABLES
from xsp.level import Kind
from xsp.trace.attribute import ATTRIBUTES, EXPORTED, Attribute


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown.

    >>> table(["a", "b"], [["1", "x"]]).splitlines()
    ['| a | b |', '|---|---|', '| 1 | x |']
    """
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    cells = [[str(cell).replace("|", "\\|") for cell in line] for line in lines]
    text = ["| " + " | ".join(line) + " |" for line in cells]
    text[1] = "|" + "---|" * len(heads)
    return "\n".join(text) + "\n"


def _meanings(columns: Mapping[str, str]) -> str:
    return table(["column", "meaning"], [(f"`{name}`", text) for name, text in columns.items()])


def _analysis(name: str) -> str:
    found = getattr(analyses, name.replace("-", "_"))
    return _meanings(found.columns)


def _kinds(known: Attribute) -> str:
    return "all" if known.kinds == tuple(Kind) else ", ".join(kind.value for kind in known.kinds)


def _attributes(_: str) -> str:
    heads = ["attribute", "exported as", "kinds", "type", "unit", "meaning"]
    rows = [
        (
            f"`{a.name}`",
            "" if a.is_table else f"`{a.exported}`",
            _kinds(a),
            f"`{a.type}`",
            a.unit,
            a.meaning,
        )
        for a in ATTRIBUTES
    ]
    return table(heads, rows)


def _exported(_: str) -> str:
    heads = ["attribute", "type", "unit", "meaning"]
    return table(heads, [(f"`{a.name}`", f"`{a.type}`", a.unit, a.meaning) for a in EXPORTED])


def _inexact(_: str) -> str:
    rows = [(f"`{one.value}`", f"`{one.mark}`", one.words) for one in Inexact]
    return table(["reason", "mark", "the latency is"], rows)


def _layer_types(_: str) -> str:
    return table(["type", "computes"], [(f"`{t.value}`", text) for t, text in MEANINGS.items()])


def _layer_table(heading: str) -> str:
    names: dict[str, list[str]] = {}
    for name, kind in TABLES[heading].items():
        names.setdefault(kind.value, []).append(f"`{name}`")
    return table(["type", "names"], [(f"`{kind}`", ", ".join(n)) for kind, n in names.items()])


def _comparison(part: str) -> str:
    return _meanings(getattr(xsp.Comparison, part))


def _zoo_columns(_: str) -> str:
    rows = [(f"`{name}`", str(column.dtype), column.meaning) for name, column in COLUMNS.items()]
    return table(["column", "type", "meaning"], rows)


def _zoo_differences(_: str) -> str:
    return _meanings(zoo.DIFFERENCE_COLUMNS)


MADE: Mapping[str, Callable[[str], str]] = {
    "analysis": _analysis,
    "attributes": _attributes,
    "exported": _exported,
    "inexact": _inexact,
    "layer-types": _layer_types,
    "layer-table": _layer_table,
    "comparison": _comparison,
    "zoo-columns": _zoo_columns,
    "zoo-differences": _zoo_differences,
}


class Generated(SphinxDirective):
    """Stands for a table that the code holds: `{generated} analysis layer-latency`."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        what, _, which = self.arguments[0].partition(" ")
        made = MADE[what](which)
        node = nodes.container()
        self.state.nested_parse(StringList(made.splitlines(), what), self.content_offset, node)
        return node.children


def _linked(app: Sphinx, docname: str, source: list[str]) -> None:
    source[0] = re.sub(r"\[([^\]]+)\]\(\.\./([^)]+)\)", r"\1 (`\2`)", source[0])


def _described(app: Sphinx, context: click.Context, lines: list[str]) -> None:
    """Keep the columns of the examples in a command's help, which sphinx-click would join."""
    kept: list[str] = []
    for barred, group in itertools.groupby(lines, lambda line: line.startswith("| ")):
        block = [line.removeprefix("| ") for line in group]
        aligned = barred and any(line.startswith("  ") for line in block)
        kept += ["::", "", *(f"    {line}" for line in block), ""] if aligned else block
    lines[:] = kept


def _closed(app: Sphinx, context: click.Context, lines: list[str]) -> None:
    if context.parent is None:  # the page has a table of the exit codes
        lines.clear()
    _described(app, context, lines)


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the directive, and what becomes of links into the repository."""
    app.add_directive("generated", Generated)
    app.connect("source-read", _linked)
    app.connect("sphinx-click-process-description", _described)
    app.connect("sphinx-click-process-epilog", _closed)
    return {"parallel_read_safe": True}
