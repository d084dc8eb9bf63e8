"""Bundles the files of the page's script into one script.

The files are ECMAScript modules that import each other, which modules within one page cannot do.
So they are put one after the other, without their imports and exports: what a file exports is a
name in the whole script, which is why no two files may define the same one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from xsp.errors import ExportError

# In this order: what is imported stands before what imports it.
FILES = (
    *("format", "unpack", "spans", "layout", "state", "theme"),
    *("view", "hierarchy", "plot", "panel", "search", "table", "keyboard", "main"),
)
# The same of the page on a zoo.
ZOO_FILES = ("format", "unpack", "state", "theme", "plot", "quantity", "grid", "zoo")
FOLDER = Path(__file__).parent / "script"

_INSTALL = "a report needs bokeh and jinja2: pip install 'xsp[report]'"
_IMPORT = re.compile(r'^import [^;]*? from "\./\w+\.js";\n', flags=re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) )", flags=re.MULTILINE)


def bundle(files: Sequence[str] = FILES) -> str:
    """Return the page's script, made of some files."""
    parts = "\n".join(map(_part, files))
    return f'(() => {{\n"use strict";\n{parts}}})();\n'


def check_installed() -> None:
    """Refuse to go on without bokeh and jinja2.

    Raises:
        ExportError: One of them is not installed.
    """
    try:
        import bokeh  # noqa: F401, PLC0415
        import jinja2  # noqa: F401, PLC0415
    except ModuleNotFoundError as error:
        raise ExportError(f"{_INSTALL} ({error})") from error


def library(shown: Mapping[str, Any]) -> list[str]:
    """Return BokehJS, with WebGL where a plot asks for that.

    Args:
        shown: Plots, as deep inside as they may be.
    """
    from bokeh.resources import Resources  # noqa: PLC0415  # bokeh is an extra

    webgl = ["bokeh-gl"] if "'webgl'" in str(shown) else []
    return list(Resources(mode="inline", components=["bokeh", *webgl]).js_raw)


def _part(name: str) -> str:
    text = (FOLDER / f"{name}.js").read_text(encoding="utf-8")
    return _EXPORT.sub("", _IMPORT.sub("", text))
