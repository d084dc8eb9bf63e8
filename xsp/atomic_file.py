"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from xsp.errors import ExportError


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a temporary file that takes the place of `path` once the block has ended well.

    Raises:
        ExportError: It could not be written; nothing is left behind.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise ExportError(f"{path} is not a file that can be replaced: save under another name")
    partial = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}.part")
    try:
        with partial.open("xb") as file:
            yield file
            file.flush()
            # Some file systems notice only here that there is no room.
            os.fsync(file.fileno())
        os.replace(partial, target)
    except OSError as error:
        raise ExportError(_refusal(path, error)) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()


def _refusal(path: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return (
            f"no room for {path}: {error.strerror}; nothing was left behind, "
            "free some space or save elsewhere"
        )
    if error.errno == errno.ENOENT:
        return f"{path} cannot be written: there is no folder {path.parent}, make it first"
    return f"{path} cannot be written: {error.strerror or error}; save elsewhere"
