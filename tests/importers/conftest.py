"""Importers for a test: those of xsp itself, and those that the test names."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points

import pytest

from xsp.importers import format as formats

Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return a function that installs importers beside those of xsp, by `module:class`."""

    def put(*values: str) -> None:
        own = tuple(entry_points(group=formats.GROUP))
        added = tuple(
            EntryPoint(f"{number} {value}", value, formats.GROUP)
            for number, value in enumerate(values)
        )
        monkeypatch.setattr(formats, "entry_points", lambda group: (*own, *added))

    return put


@pytest.fixture
def toy(install: Install) -> None:
    """Install the importer of the tests' own format."""
    install("recorded:Toy")
