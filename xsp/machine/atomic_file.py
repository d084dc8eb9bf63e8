"""Writes files and folders atomically: one takes its path's place once it is whole."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from xsp.errors import ExportError


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a temporary file that takes the place of `path` once the block has ended well.

    If `path` is a link, the link is replaced and its target left alone: in a folder that
    everybody may write to, the link may be a trap. If `path` is a file of this user's, the new
    file gets its mode; any other new file gets the mode of the umask.

    Raises:
        ExportError: The file could not be written; nothing is left behind.
    """
    with _refusals(path), _partial(path) as file:
        yield file
        file.flush()
        # Some file systems notice only here that there is no room.
        os.fsync(file.fileno())
        os.replace(file.name, path)


@contextmanager
def replacing_folder(path: Path, is_ours: Callable[[Path], bool]) -> Iterator[Path]:
    """Yield an empty folder that takes the place of `path` once the block has ended well.

    Args:
        path: The folder; there must be none, or one that may be replaced.
        is_ours: Whether a folder may be replaced.

    Raises:
        ExportError: There is something else, or the folder could not be written; nothing is left
            behind.
    """
    check_folder(path, is_ours)
    with _refusals(path):
        partial, old = _beside(path, "part"), _beside(path, "old")
        partial.mkdir()
        try:
            yield partial
            if path.exists():
                path.rename(old)
            partial.rename(path)
        finally:
            if old.exists() and not path.exists():
                old.rename(path)
            shutil.rmtree(partial, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)


def check_folder(path: Path, is_ours: Callable[[Path], bool]) -> None:
    """Verify that a folder is not there, or may be replaced.

    Raises:
        ExportError: There is something else.
    """
    with _refusals(path):
        if path.is_symlink() or (path.exists() and not (path.is_dir() and is_ours(path))):
            raise ExportError(
                f"{path} is there already, and not as xsp wrote it: remove it, or save under "
                "another name"
            )


def _beside(path: Path, suffix: str) -> Path:
    """Return a new name, hidden and in the same folder."""
    return path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}.{suffix}")


def check_writable(path: Path) -> None:
    """Verify that a file can be written: create a temporary file beside it and delete that.

    Raises:
        ExportError: The file cannot be written.
    """
    with _refusals(path), _partial(path):
        pass


@contextmanager
def _partial(path: Path) -> Iterator[IO[bytes]]:
    """Yield a new file beside `path`; delete the new file afterwards unless it was renamed."""
    if (path.exists() and not path.is_file()) or _of_system(path):
        raise ExportError(f"{path} is not a file that can be replaced: save under another name")
    partial = _beside(path, "part")
    mode = _own_mode(path)
    try:
        with partial.open("xb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            yield file
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()


def _own_mode(path: Path) -> int | None:
    """Return the mode of a regular file that this user owns, else None."""
    try:
        status = path.lstat()
    except OSError:
        return None
    ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
    return stat.S_IMODE(status.st_mode) & 0o777 if ours else None


def _of_system(path: Path) -> bool:
    """Return whether a path is a link that the system keeps, such as /dev/stdout."""
    folder = os.path.realpath(path.parent)
    return path.is_symlink() and Path(folder).parts[1:2] in (("dev",), ("proc",))


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ExportError(_refusal(path, error)) from error


def _refusal(path: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return (
            f"no room for {path}: {error.strerror}; nothing was left behind, "
            "free some space or save elsewhere"
        )
    if error.errno == errno.ENOENT:
        return f"{path} cannot be written: there is no folder {path.parent}, make it first"
    return f"{path} cannot be written: {error.strerror or error}; save elsewhere"
