"""The public API is `__all__`, and `__all__` is the public API."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from types import ModuleType

import pytest

import xsp

PUBLIC = (
    *("xsp", "xsp.analyses", "xsp.export", "xsp.importers", "xsp.provider", "xsp.testing"),
    "xsp.zoo",
)


@pytest.fixture(params=PUBLIC)
def module(request: pytest.FixtureRequest) -> ModuleType:
    return importlib.import_module(request.param)


def test_all_is_what_can_be_imported(module: ModuleType) -> None:
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_all_is_free_of_repeats(module: ModuleType) -> None:
    assert len(module.__all__) == len(set(module.__all__))


def test_star_import_gives_all() -> None:
    names: dict[str, object] = {}
    exec("from xsp import *", names)
    assert set(xsp.__all__) == names.keys() - {"__builtins__"}


def test_what_a_public_module_defines_itself_is_in_all(module: ModuleType) -> None:
    own = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    }
    assert own - set(module.__all__) == set()


def test_dir_names_the_public_api() -> None:
    assert set(xsp.__all__) <= set(dir(xsp))


@pytest.mark.parametrize("name", ["profil", "numpy"])
def test_an_unknown_name_raises_as_everywhere(name: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{name}'"):
        getattr(xsp, name)


@pytest.mark.parametrize("name", sorted(set(xsp.__all__) - {"__version__"}))
def test_every_public_name_has_a_docstring(name: str) -> None:
    assert inspect.getdoc(getattr(xsp, name))


def test_every_error_is_one_of_xsp() -> None:
    errors = [
        value
        for value in (getattr(xsp, name) for name in xsp.__all__)
        if inspect.isclass(value) and issubclass(value, Exception)
    ]
    errors.remove(xsp.StopMeasurement)  # raised by users, to say that it is enough
    assert len(errors) == 7
    assert all(issubclass(error, xsp.XspError) for error in errors)


def test_no_public_function_has_the_name_of_a_room() -> None:
    rooms = {path.parent.name for path in Path(xsp.__file__).parent.glob("*/__init__.py")}
    functions = {name for name in xsp.__all__ if not inspect.ismodule(getattr(xsp, name))}
    assert not rooms & functions, "importing the room would hide the function"
