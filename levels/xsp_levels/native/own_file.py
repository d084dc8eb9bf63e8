"""Tells descriptors of xsp's from others, because the program may close xsp's with all of its own.

After `os.closerange(3, 4096)` a number of xsp's is closed, or is a file that the program opened.
"""

from __future__ import annotations

import os

File = tuple[int, int]


def file_of(descriptor: int) -> File | None:
    """Return the device and inode that tell an open file; None: the descriptor is closed."""
    try:
        about = os.fstat(descriptor)
    except OSError:
        return None
    return about.st_dev, about.st_ino


def close_own(descriptor: int, file: File | None) -> None:
    """Close a descriptor if it is still the file that xsp opened.

    Args:
        descriptor: Its number.
        file: What `file_of` returned for it when it was opened. The kernel's events are all one.
    """
    if file is not None and file_of(descriptor) == file:
        os.close(descriptor)
