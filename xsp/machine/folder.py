"""Names the user's folders for xsp's state, data and cache."""

from __future__ import annotations

from pathlib import Path

from platformdirs import PlatformDirs

_FOLDERS = PlatformDirs("xsp", appauthor=False)


def state_folder() -> Path:
    """Return the folder of files that outlast the program and are no work of the user's."""
    return _FOLDERS.user_state_path


def data_folder() -> Path:
    """Return the folder of files that the user will look at again."""
    return _FOLDERS.user_data_path


def cache_folder() -> Path:
    """Return the folder of files that xsp can make anew."""
    return _FOLDERS.user_cache_path
