"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from xsp.errors import ExportError


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a temporary file that takes the place of `path` once the block has ended well.

    A link is replaced itself, and what it leads to is left alone: in a folder that
    everybody may write to, it may be a trap. Our own older file hands on its mode; all
    other files get that of the umask.

    Raises:
        ExportError: It could not be written; nothing is left behind.
    """
    with _refusals(path), _partial(path) as file:
        yield file
        file.flush()
        # Some file systems notice only here that there is no room.
        os.fsync(file.fileno())
        os.replace(file.name, path)


def check_writable(path: Path) -> None:
    """Verify that a file can be written, by beginning one beside it that is taken away again.

    Raises:
        ExportError: It cannot.
    """
    with _refusals(path), _partial(path):
        pass


@contextmanager
def _partial(path: Path) -> Iterator[IO[bytes]]:
    """Yield a new file beside `path`, which is gone afterwards unless it was renamed."""
    if (path.exists() and not path.is_file()) or _of_system(path):
        raise ExportError(f"{path} is not a file that can be replaced: save under another name")
    partial = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}.part")
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
    """Return the mode of a regular file that is ours, else None."""
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
