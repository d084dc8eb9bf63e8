"""`xsp zoo init` and `xsp zoo list`: a commented zoo file, and what a zoo's run would do, out."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xsp.cli import exit_code, terminal
from xsp.cli.zoo.argument import FORMS, folder_of, zoo_arguments, zoo_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from xsp.zoo import Planned

_INIT_EPILOG = """\b
Examples:
  xsp zoo init                                 writes zoo.toml
  xsp zoo init overnight.toml
"""

_LIST_HELP = f"""Say what a run of ZOO would do, and about how long it takes.

{FORMS}
Of the folder of results (-o) it says what is complete there, and what would be measured again, and
why. The time is what earlier results took, where the folder has some.
"""

_LIST_EPILOG = """\b
Examples:
  xsp zoo list zoo.toml
  xsp zoo list zoo.toml -o results/
  xsp zoo list torchvision timm:resnet*,vit_tiny* --batch 1,8 --levels 2
  xsp zoo list torchvision --only 'resnet*' --precision float32,bfloat16
"""

_STATES = {"complete": "complete", "again": "to be measured again", "to do": "to do"}


@click.command(name="init", epilog=_INIT_EPILOG)
@click.argument("file", default="zoo.toml", type=click.Path(dir_okay=False, path_type=Path))
def init(file: Path) -> int:
    """Write a commented zoo file to begin with; none that is there is overwritten."""
    from xsp.zoo import template  # noqa: PLC0415  # help and completion come at once

    if file.suffix != ".toml":
        raise click.UsageError(f"{file} is no name of a zoo file, which ends in .toml")
    try:
        with file.open("x", encoding="utf-8") as new:
            new.write(template())
    except FileExistsError as error:
        raise click.UsageError(f"{file} is there already: choose another name") from error
    terminal.say(f"wrote {file}; what it would measure: xsp zoo list {file}")
    return exit_code.OK


@click.command(name="list", help=_LIST_HELP, epilog=_LIST_EPILOG)
@zoo_arguments
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Folder of results of earlier runs.  [default: NAME-zoo]",
)
def list_zoo(output: Path | None, **given: Any) -> int:
    """Say what a run of a zoo would do."""
    from xsp.zoo import preview  # noqa: PLC0415

    zoo = zoo_of(given)
    planned = preview(zoo.tasks, folder_of(zoo, output))
    lines = [f"{zoo.name}: {_summary(planned)}", *_lines(planned)]
    terminal.show("\n".join(lines))
    return exit_code.OK


def _summary(planned: Sequence[Planned]) -> str:
    """Return how many models and points there are, and how long what is left takes."""
    from xsp.text import clock_time, counted  # noqa: PLC0415

    models = counted(len({each.task.model for each in planned}), "model")
    said = [f"{models}, {counted(len(planned), 'point')}"]
    for state, words in _STATES.items():
        if number := sum(each.state == state for each in planned):
            said.append(f"{number} {words}")
    return f"{'; '.join(said)}; about {clock_time(sum(each.expected_s for each in planned))}"


def _lines(planned: Iterable[Planned]) -> list[str]:
    """Return a line for each model, its settings, and its batches in the same state."""
    rows = []
    for (model, settings, state, why), group in groupby(planned, key=_alike):
        points = list(group)
        batches = ", ".join(str(each.point.spec.batch) for each in points if each.point.spec.batch)
        said = [f"batch {batches}"] if batches else []
        said += [settings] if settings else []
        rows.append((model, ", ".join(said), _words(state, why, points)))
    wide = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    return [f"  {name:<{wide[0]}}  {said:<{wide[1]}}  {state}" for name, said, state in rows]


def _alike(planned: Planned) -> tuple[str, str, str, str]:
    """Return what points have in common that stand in one line."""
    return (planned.task.model, planned.point.common, planned.state, planned.why)


def _words(state: str, why: str, points: Sequence[Planned]) -> str:
    from xsp.text import clock_time  # noqa: PLC0415

    if state == "complete":
        return state
    time = f"about {clock_time(sum(each.expected_s for each in points))}"
    return f"again, {time}, for {why}" if why else f"{state}, {time}"
