"""rocprofv3: the JSON that `rocprofv3 --output-format json` writes in, rows out.

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
from xsp.importers.call import doubled_calls, tied
from xsp.importers.reading import content, listed
from xsp.importers.recording import Contents, Recording
from xsp.importers.rocm import part_steps
from xsp.importers.rocprofv3.device import device_rows, gpus
from xsp.importers.rocprofv3.host import host_rows
from xsp.importers.rocprofv3.message import Process, decoded, repaired
from xsp.importers.rocprofv3.process import Records
from xsp.importers.source import Source
from xsp.problem import Problem
from xsp.provider import concat_rows

_BEGINNING = re.compile(rb'\s*\{\s*"rocprofiler-sdk-tool"\s*:')


class RocProf:
    """Reads the JSON of rocprofv3."""

    name = "rocprofv3"
    tool = "rocprofv3 --output-format json"

    def recognises(self, source: Source) -> bool:
        """Tell whether the file begins with the name of rocprofv3's library."""
        return _BEGINNING.match(source.head) is not None

    def read(self, source: Source) -> Contents:
        """Return what each process did.

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
    """Return what a process did.

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
        problems=(*_problems(records, cut=cut), *doubled_calls(doubled)),
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


def _problems(records: Records, *, cut: bool) -> Iterator[Problem]:
    if cut:
        yield Problem(
            "cut-short", "the file ends in the middle; what was recorded behind is missing"
        )
    if records.damaged:
        yield Problem("damaged", f"left out, for they are damaged: {listed(records.damaged)}")
    if records.left:
        yield Problem("not-understood", f"not understood, and left out: {listed(records.left)}")
    if records.marks:
        yield Problem("marks-left-out", f"events without a duration: {listed(records.marks)}")
