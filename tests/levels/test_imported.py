from __future__ import annotations

import copy
import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

from xsp_levels.imported import Imports


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a module that can be imported, and has not been."""
    (tmp_path / "lent_module.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "lent_module", raising=False)
    return "lent_module"


def test_the_end_of_an_import_is_told_once_and_the_module_is_as_always(name: str) -> None:
    told: list[int] = []
    imports = Imports((name,), lambda: told.append(sys.modules[name].value))
    imports.begin()
    try:
        module = importlib.import_module(name)
        importlib.import_module(name)
    finally:
        imports.end()
    assert told == [1]
    assert module.__spec__ is not None
    assert type(module.__spec__.loader).__module__ != Imports.__module__
    assert imports not in sys.meta_path


def test_who_only_looks_for_a_module_finds_its_file_and_nothing_is_told(name: str) -> None:
    told: list[int] = []
    imports = Imports((name,), lambda: told.append(1))
    imports.begin()
    try:
        spec = importlib.util.find_spec(name)
    finally:
        imports.end()
    assert spec is not None
    loader = copy.copy(spec.loader)
    assert Path(loader.get_filename(name)).name == f"{name}.py"  # type: ignore[union-attr]
    assert not told
    assert name not in sys.modules


def test_a_module_that_is_imported_already_is_not_watched_for() -> None:
    imports = Imports(("sys",), lambda: None)
    imports.begin()
    assert imports not in sys.meta_path
