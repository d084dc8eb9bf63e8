"""Tables of all processes in; one recording for each process out."""

from __future__ import annotations

from xsp.importers.nsys import about, device, host, nvtx, remark, table
from xsp.importers.nsys.database import Database
from xsp.importers.nsys.step import part_steps
from xsp.importers.nsys.table import Tables
from xsp.importers.recording import Recording
from xsp.level import Kind
from xsp.problem import Problem
from xsp.provider import SpanRows, concat_rows


def recordings(database: Database) -> tuple[Recording, ...]:
    """Return a recording of each process that has spans.

    Where some processes used a GPU or announced ranges, processes of which only calls of the
    system were seen, such as the shell that started the others, are left out.
    """
    tables = table.read(database)
    processes = {
        number: found
        for number, own in table.by_process(tables).items()
        for found in [_spans(database, own)]
        if found[0].height
    }
    busy = {n: f for n, f in processes.items() if (f[0]["kind"] != Kind.SYSCALL.value).any()}
    idle = [
        about.process_name(database, n, sole=False) for n in processes if busy and n not in busy
    ]
    of_file = list(remark.of_file(database, tables, idle))
    shown = busy or processes
    return tuple(
        _recording(
            database,
            number,
            rows,
            [*(of_file if not place else ()), *problems],
            sole=len(shown) == 1,
        )
        for place, (number, (rows, problems)) in enumerate(shown.items())
    )


def _spans(database: Database, tables: Tables) -> tuple[SpanRows, list[Problem]]:
    """Return all rows of a process, and what is missing of them."""
    launches = host.launches(database, tables)
    activities = device.activities(database, tables, launches)
    ranges, others = nvtx.ranges(database, tables)
    rows = concat_rows(
        [
            ranges,
            host.library_calls(database, tables),
            launches,
            activities,
            host.system_calls(database, tables),
        ]
    )
    return rows, list(remark.of_process(tables, rows, others))


def _recording(
    database: Database, process: int, rows: SpanRows, problems: list[Problem], *, sole: bool
) -> Recording:
    steps, others = part_steps(rows)
    return Recording(
        tool=about.tool(database),
        rows=others,
        roots=steps,
        name=about.process_name(database, process, sole=sole),
        problems=tuple(problems),
        environment=about.environment(database, process),
        unix_ns=about.unix_ns(database),
        rank=about.rank(database, process, sole=sole),
        host=about.host(database),
    )
