"""Exit codes of the command line, one for each way in which a command ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xsp.errors import ExportError

OK = 0
TARGET_FAILED = 1
USAGE = 2  # click's own choice
NOT_MEASURED = 3
NOT_EXPORTED = 4
WORSE = 5
INTERRUPTED = 130  # 128 + SIGINT, as shells have it


def of_export(error: ExportError) -> int:
    """Return the exit code of a failed export: to a file, or of spans that did not arrive."""
    return NOT_MEASURED if error.delivery is None else NOT_EXPORTED
