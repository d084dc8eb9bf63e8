"""`xsp import` reads files of other tools, prints the tree and saves the trace.

Every command that takes a trace reads its files here, and so takes files of other tools too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from xsp.show.cli import terminal
from xsp.show.cli.option import output_option, tree_options

if TYPE_CHECKING:
    from xsp.trace import Trace

_SUFFIXES = re.compile(r"(\.(xsp|ctf|json|ncu-rep|sqlite|pb|csv|gz|rpd|pt\.trace))+$")
FILE = click.Path(exists=True, path_type=Path)  # or a folder, as CTF is

_HELP = """Convert files of other tools to a trace, and print its tree.

The format of each FILE is found from its content, whatever its name, gzip or
not: PyTorch's profiler (Kineto), Nsight Systems, Nsight Compute, XPlane of
TensorFlow and JAX, ONNX Runtime's profile, ROCm, LTTng (a folder), and what
other packages read. Several files make one trace: of ranks of a distributed
program one with a child for each rank.
"""

_EPILOG = """\b
Examples:
  xsp import resnet50.pt.trace.json.gz
  xsp import rank0.json.gz rank1.json.gz -o ranks.xsp
  xsp import report.sqlite --whole
  xsp import report.sqlite --warnings       everything that you should know of the numbers
  xsp show trace.json.gz                    the tree alone
  xsp export trace.json.gz                  to Jaeger, or where --to says
"""


@click.command("import", help=_HELP, epilog=_EPILOG)
@click.argument("files", nargs=-1, required=True, type=FILE)
@output_option("File for the trace.  [default: NAME.xsp; with --json: nowhere]")
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    help="Samples in a step, which such files do not tell.",
)
@click.option("--whole", is_flag=True, help="The whole recording, not a typical one of its steps.")
@click.option("--json", "as_json", is_flag=True, help="Print the spans as JSON, not the tree.")
@tree_options
def import_files(
    files: tuple[Path, ...],
    output: Path | None,
    *,
    batch: int | None,
    whole: bool,
    as_json: bool,
    **columns: bool,
) -> None:
    """Read files of other tools."""
    from xsp.machine import check_writable  # noqa: PLC0415

    if output is None and not as_json:
        # Refuse a single file that is a trace of xsp, which a second one would only repeat.
        from xsp.trace import is_own  # noqa: PLC0415

        if len(files) == 1 and is_own(files[0]):
            read(
                files
            )  # says so where it is damaged, or holds records of which no trace is made yet
            raise click.UsageError(
                f"{files[0]} is a trace of xsp already. Print it with: xsp show {files[0]}"
            )
    to = output or (None if as_json else Path(f"{_name(files)}.xsp"))
    if to is not None:
        if any(to.resolve() == file.resolve() for file in files):
            raise click.UsageError(f"-o would replace an input file ({to}). Choose another name.")
        check_writable(to)
    trace = read(files, steps=not whole, batch=batch)
    terminal.show(terminal.as_json(trace) if as_json else trace.tree(**columns))
    if to is not None:
        terminal.say(terminal.saved(trace, to))


def read(files: Sequence[Path], *, steps: bool = True, batch: int | None = None) -> Trace:
    """Return the trace of files, those of xsp itself or those of other tools."""
    from xsp.trace import is_own, load  # noqa: PLC0415

    if len(files) == 1 and is_own(files[0]):  # importers take a while to import
        return load(files[0])
    from xsp.reading.importers import read as read_files  # noqa: PLC0415

    trace = read_files(*files, steps=steps, batch=batch)
    if steps:  # the commands below the tree take these files too, and read their steps
        object.__setattr__(trace, "_file", " ".join(map(str, files)))
    return trace


def _name(files: Sequence[Path]) -> str:
    from xsp.reading.importers import name_of  # noqa: PLC0415

    return name_of(files)


def names_of(files: Sequence[Path]) -> list[str]:
    """Return the names of several traces: those of their files.

    >>> names_of([Path("a/before.xsp"), Path("after.json.gz")])
    ['before', 'after']
    >>> names_of([Path("a/model.xsp"), Path("b/model.xsp")])
    ['a/model.xsp', 'b/model.xsp']
    """
    names = [_SUFFIXES.sub("", file.name) or file.name for file in files]
    return names if len(set(names)) == len(names) else [str(file) for file in files]
