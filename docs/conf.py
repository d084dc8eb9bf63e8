"""Builds the documentation: `make docs`. Tables that the code holds are made from the code."""

from __future__ import annotations

import sys
from pathlib import Path

import xsp

sys.path.insert(0, str(Path(__file__).parent))

project = "xsp"
author = "The xsp authors"
copyright = "The xsp authors"
version = release = xsp.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "sphinx_copybutton",
    "generated",
]
exclude_patterns = ["_build", "picture", "schema"]

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
copybutton_prompt_text = "$ "

html_theme = "furo"
html_title = "xsp"
html_extra_path = ["llms.txt"]
html_theme_options = {"source_edit_link": ""}
html_show_sourcelink = True

default_role = "code"
autodoc_member_order = "groupwise"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_numpy_docstring = False
napoleon_use_ivar = True

nitpick_ignore_regex = [
    # Python's and polars's types: the build reads no inventory, because it needs no network.
    ("py:class", r"(?:collections\.abc|dataclasses|os|pathlib|polars|pl)\..*"),
    # Types behind the public names, which the signatures of these mention.
    ("py:class", r"xsp\..*|Progress|LevelSet"),
    # Words before a colon in docstrings, which napoleon takes for types.
    ("py:class", r".* .*"),
]
suppress_warnings = ["myst.xref_ambiguous"]
