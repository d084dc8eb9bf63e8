"""Lists the parts of files that are mapped into this process, by `/proc/self/maps`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_MAPPING = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) (\S{4}) ([0-9a-f]+) \S+ (?!0 )\d+ +(/\S.*?)(?: \(deleted\))?$",
    re.MULTILINE,
)
_LIBRARY = re.compile(r"\.so(\.|$)")


@dataclass(frozen=True, slots=True)
class Mapping:
    """A part of a file that is mapped into this process.

    Attributes:
        start: First address.
        end: First address after it.
        offset: Offset of the part's first byte in the file.
        path: The file.
        executable: Whether the part holds code.
    """

    start: int
    end: int
    offset: int
    path: str
    executable: bool


def mappings() -> list[Mapping]:
    """Return the parts of files mapped into this process, by address; none without /proc."""
    try:
        content = Path("/proc/self/maps").read_bytes()
    except OSError:
        return []
    return read_mappings(os.fsdecode(content))


def read_mappings(text: str) -> list[Mapping]:
    """Return the parts of files in the text of a `/proc/…/maps`. Pure."""
    return [
        Mapping(int(start, 16), int(end, 16), int(offset, 16), path, "x" in rights)
        for start, end, rights, offset, path in _MAPPING.findall(text)
    ]


def libraries(found: Iterable[Mapping]) -> list[str]:
    """Return the path of each shared library among mappings, once, in the same order."""
    return list(
        dict.fromkeys(
            each.path
            for each in found
            if each.executable and _LIBRARY.search(os.path.basename(each.path))
        )
    )
