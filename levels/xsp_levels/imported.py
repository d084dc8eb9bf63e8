"""Watches for the end of imports of named modules.

A provider must import no framework, and must notice when the program does.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Imports(MetaPathFinder):
    """Watches for the end of imports, from `begin` to `end`.

    Args:
        names: Names of the modules.
        imported: Called when one of them has been imported, on the thread that imported it.
    """

    def __init__(self, names: Collection[str], imported: Callable[[], None]) -> None:
        self._names = frozenset(names)
        self._imported = imported
        self._looking: set[tuple[int, str]] = set()  # threads and modules that are looked for now

    def begin(self) -> None:
        """Begin to watch, unless all of the modules have been imported."""
        if self not in sys.meta_path and any(name not in sys.modules for name in self._names):
            sys.meta_path.insert(0, self)

    def end(self) -> None:
        """Stop watching; nothing stays behind."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the specification that the other finders give, with a loader that calls back."""
        asked = threading.get_ident(), fullname
        if fullname not in self._names or asked in self._looking:  # by another one that looks
            return None
        self._looking.add(asked)
        try:
            for finder in list(sys.meta_path):
                find: Any = getattr(finder, "find_spec", None)
                found: ModuleSpec | None = None
                if finder is not self and find is not None:
                    found = find(fullname, path, target)
                if found is not None:
                    if found.loader is not None:
                        found.loader = _Telling(found.loader, self._imported)
                    return found
            return None
        finally:
            self._looking.discard(asked)


class _Telling(Loader):
    """Loader that wraps another one, and calls back after the import."""

    def __init__(self, loader: Any, imported: Callable[[], None]) -> None:
        self._loader = loader
        self._imported = imported

    def __getattr__(self, name: str) -> Any:
        """Forward other attributes to the loader: who only looks for a module asks for its file."""
        if name.startswith("_"):  # a copy asks before there is another one
            raise AttributeError(name)
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._imported()
