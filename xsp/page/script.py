"""Scripts: the files of the page's script in, one script for the page out.

The files are ECMAScript modules that import each other, which modules within one page cannot do.
So they are put one after the other, without their imports and exports: what a file exports is a
name in the whole script, which is why no two files may define the same one.
"""

from __future__ import annotations

import re
from pathlib import Path

# In this order: what is imported stands before what imports it.
FILES = (
    *("format", "unpack", "spans", "layout", "state", "theme"),
    *("view", "hierarchy", "plot", "panel", "search", "table", "keyboard", "main"),
)
FOLDER = Path(__file__).parent / "script"

_IMPORT = re.compile(r'^import [^;]*? from "\./\w+\.js";\n', flags=re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) )", flags=re.MULTILINE)


def bundle() -> str:
    """Return the page's script."""
    parts = "\n".join(map(_part, FILES))
    return f'(() => {{\n"use strict";\n{parts}}})();\n'


def _part(name: str) -> str:
    text = (FOLDER / f"{name}.js").read_text(encoding="utf-8")
    return _EXPORT.sub("", _IMPORT.sub("", text))
