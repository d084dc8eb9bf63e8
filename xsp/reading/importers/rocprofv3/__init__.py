"""Reads the JSON that `rocprofv3 --output-format json` writes, as rows.

One element of the file's list is one process. Its calls, ranges, dispatches and copies share
correlation ids. `message` decodes, `process` leaves out what is damaged, `host` and `device` make
rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath

import msgspec

from xsp.errors import TraceFormatError
from xsp.provider import concat_rows
from xsp.reading.importers.call import doubled_calls, tied
from xsp.reading.importers.reading import content, listed
from xsp.reading.importers.recording import Contents, Recording
from xsp.reading.importers.rocm import part_steps
from xsp.reading.importers.rocprofv3.device import device_rows, gpus
from xsp.reading.importers.rocprofv3.host import host_rows
from xsp.reading.importers.rocprofv3.message import Process, decoded, repaired
from xsp.reading.importers.rocprofv3.process import Records
from xsp.reading.importers.source import Source
from xsp.warning import TraceWarning

_BEGINNING = re.compile(rb'\s*\{\s*"rocprofiler-sdk-tool"\s*:')


class RocProf:
    """Reads the JSON of rocprofv3."""

    name = "rocprofv3"
    tool = "rocprofv3 --output-format json"

    def recognizes(self, source: Source) -> bool:
        """Tell whether the file begins with the name of rocprofv3's library."""
        return _BEGINNING.match(source.head) is not None

    def read(self, source: Source) -> Contents:
        """Read a recording of each process.

        Raises:
            TraceFormatError: The file is not the JSON of rocprofv3, or nothing of it is whole.
        """
        data, cut = content(source)
        try:
            file = decoded(data)
        except msgspec.DecodeError as error:
            whole, cut = repaired(data), True
            if whole is None:
                raise TraceFormatError(f"{source.path} is damaged JSON: {error}") from error
            file = whole
        processes = file.processes if isinstance(file.processes, list) else [file.processes]
        return tuple(_recording(process, cut=cut) for process in processes)


def _recording(process: Process, *, cut: bool) -> Recording:
    """Build the recording of a process.

    Args:
        process: The process.
        cut: Whether the file ends in the middle.
    """
    records = Records(process)
    rows, doubled = tied(concat_rows([host_rows(records), device_rows(records)]))
    rows, steps = part_steps(rows)
    records.count_others()
    host = process.metadata.node.hostname
    devices = [name for _, name in sorted(gpus(process.agents).values())]
    environment = {"devices": devices, "host": host}
    return Recording(
        tool="rocprofv3",
        rows=rows,
        roots=steps,
        name=_program(process.metadata.command),
        warnings=(*_warnings(records, cut=cut), *doubled_calls(doubled)),
        environment={key: value for key, value in environment.items() if value},
        host=host,
    )


def _program(command: Sequence[str]) -> str:
    """Return the name of the program that was recorded.

    >>> _program(["/usr/bin/python3.10", "-u", "/srv/train.py", "--steps=5"])
    'train.py'
    """
    script = next((word for word in command if word.endswith(".py")), None)
    return PurePath(script or (command[0] if command else "")).name


def _warnings(records: Records, *, cut: bool) -> Iterator[TraceWarning]:
    if cut:
        yield TraceWarning(
            "cut-short", "the file ends in the middle; later spans are missing. Record again."
        )
    if records.damaged:
        yield TraceWarning("damaged", f"damaged and left out: {listed(records.damaged)}")
    if records.left:
        yield TraceWarning(
            "not-understood", f"xsp does not know and left out: {listed(records.left)}"
        )
    if records.marks:
        yield TraceWarning(
            "marks-left-out", f"events without a duration are left out: {listed(records.marks)}"
        )
