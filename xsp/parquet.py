"""The file of a trace: one Parquet table with its metadata inside, written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
from pathlib import Path

import polars as pl

from xsp.errors import ExportError, TraceFormatError

_KEY = "xsp"
_MAGIC = b"PAR1"
# Magic at both ends, and the length of the footer.
_SMALLEST = 12


def write(spans: pl.DataFrame, metadata: str, path: Path) -> Path:
    """Write spans and metadata (JSON) to `path` by way of a temporary file beside it.

    Raises:
        ExportError: It could not be written; nothing is left behind.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise ExportError(f"{path} is not a file that can be replaced: save under another name")
    buffer = io.BytesIO()
    spans.write_parquet(buffer, metadata={_KEY: metadata})
    partial = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}.part")
    try:
        _write_whole(partial, buffer.getbuffer())
        os.replace(partial, target)
    except OSError as error:
        raise ExportError(_refusal(path, error)) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()
    return path


def read(path: Path) -> tuple[pl.DataFrame, str]:
    """Return the spans of a file and its metadata as JSON text.

    Raises:
        TraceFormatError: The file is damaged or not a trace.
        OSError: The file cannot be opened.
    """
    with path.open("rb") as file:
        _check_ends(path, file)
        # By content, not by name: polars takes `[` and `*` in a name for a pattern.
        buffer = io.BytesIO(file.read())
    try:
        metadata = pl.read_parquet_metadata(buffer).get(_KEY)
        buffer.seek(0)
        # A Parquet file of someone else's may be huge: its columns are not read at all.
        spans = pl.read_parquet(buffer) if metadata is not None else pl.DataFrame()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError) as error:
        raise TraceFormatError(
            f"{path} is damaged and cannot be read: copy it anew or measure again ({error})"
        ) from error
    if metadata is None:
        raise TraceFormatError(
            f"{path} is a Parquet file but not a trace: open files that trace.save() wrote"
        )
    return spans, metadata


def _check_ends(path: Path, file: io.BufferedReader) -> None:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if size == 0:
        raise TraceFormatError(f"{path} is empty, not a trace: measure again and save it")
    if file.read(4) != _MAGIC:
        raise TraceFormatError(f"{path} is not a trace: open files that trace.save() wrote")
    file.seek(-min(size, 4), os.SEEK_END)
    if size < _SMALLEST or file.read(4) != _MAGIC:
        raise TraceFormatError(
            f"{path} ends too early, a part of it is missing: copy it anew or measure again"
        )
    file.seek(0)


def _write_whole(path: Path, content: memoryview) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        # Some file systems notice only here that there is no room.
        os.fsync(file.fileno())


def _refusal(path: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return (
            f"no room for {path}: {error.strerror}; nothing was left behind, "
            "free some space or save elsewhere"
        )
    if error.errno == errno.ENOENT:
        return f"{path} cannot be written: there is no folder {path.parent}, make it first"
    return f"{path} cannot be written: {error.strerror or error}; save elsewhere"
