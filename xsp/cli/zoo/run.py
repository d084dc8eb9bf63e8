"""`xsp zoo run`: a zoo in, a folder of traces and one table of results out."""

from __future__ import annotations

import json
import re
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xsp.cli import exit_code, terminal
from xsp.cli.sweep.command import terminable
from xsp.cli.zoo.argument import FORMS, folder_of, zoo_arguments, zoo_of
from xsp.cli.zoo.progress import watching

if TYPE_CHECKING:
    from xsp.zoo import Folder, Tally, Zoo

_HELP = f"""Measure every model of ZOO, each in a process of its own.

{FORMS}
Traces and one table, results.parquet, go to a folder. What crashes, needs too much memory or too
long, or wants to download is a result with its reason, and the next model follows. The same
command again measures only what is missing there, and what failed or crashed; after a change of
versions, machine or file it measures again, and says so.
"""

_EPILOG = """\b
Examples:
  xsp zoo run zoo.toml -o results/
  xsp zoo run torchvision timm:resnet*,vit_tiny* --batch 1,8 --levels 2 -o results/
  xsp zoo run zoo.toml -o results/ --total-budget 3600
  xsp zoo run zoo.toml -o results/ --only 'resnet*' --batch 8 --again
  xsp zoo run zoo.toml -o results/ --json 2> results.log
  xsp zoo run zoo.toml -o results/ --ray

\b
Exit codes:
    0  every point was measured, ran out of memory or was skipped for that, or is left for later
    1  a point failed, crashed, or took too long; the others are measured
    3  not a single point could be measured, or the folder cannot be written
  130  interrupted; the same command goes on
"""


_HERE = "auto"  # the cluster of this machine


def _address(ctx: click.Context, param: click.Parameter, text: str | None) -> str | None:
    """Refuse as an address what stands after --ray and is none, such as a zoo."""
    if text is None or text == _HERE or re.search(r":\d+$", text):
        return text
    raise click.BadParameter(
        f"{text!r} is no address of a cluster, as 10.0.0.1:6379 is: if it is the zoo, write it "
        "before --ray"
    )


@click.command(name="run", help=_HELP, epilog=_EPILOG)
@zoo_arguments
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Where traces and table go.  [default: NAME-zoo]",
)
@click.option(
    "--total-budget",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Seconds after which no further measurement begins.  [default: no limit]",
)
@click.option(
    "--ray",
    "cluster",
    is_flag=False,
    flag_value=_HERE,
    callback=_address,
    metavar="[ADDRESS]",
    help="Measure on the nodes of a Ray cluster, HOST:PORT, or without ADDRESS that of this "
    "machine; write it after ZOO. Needs xsp[ray].",
)
@click.option(
    "--again", is_flag=True, help="Measure also what is complete; with --only, what you suspect."
)
@click.option("--json", "as_json", is_flag=True, help="Print what became of all points as JSON.")
def run_zoo(
    *,
    output: Path | None,
    total_budget: float | None,
    cluster: str | None,
    again: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Measure a zoo."""
    from xsp.zoo import opened, run, run_on_ray  # noqa: PLC0415  # help and completion come at once

    zoo = zoo_of(given)
    path = folder_of(zoo, output)
    began = time.monotonic()
    with terminable(), opened(path) as folder:
        for note in folder.notes:
            terminal.say(note)
        try:
            with watching() as watch:
                if cluster is None:
                    tally = run(zoo.tasks, folder, watch, total_s=total_budget, again=again)
                else:
                    address = None if cluster == _HERE else cluster
                    tally = run_on_ray(
                        zoo.tasks,
                        folder,
                        watch,
                        address=address,
                        total_s=total_budget,
                        again=again,
                    )
        except KeyboardInterrupt:
            return terminal.fail(
                f"interrupted; the same command goes on, with what is complete in {path}",
                exit_code.INTERRUPTED,
            )
    took_s = time.monotonic() - began
    terminal.show(_as_json(tally, path) if as_json else _as_text(tally, zoo, folder, took_s))
    return _code(tally)


def _as_text(tally: Tally, zoo: Zoo, folder: Folder, took_s: float) -> str:
    """Return a summary of the points' results, what failed, and how many have each status."""
    from xsp.text import clock_time, counted  # noqa: PLC0415
    from xsp.zoo import TABLE, is_measured, summary  # noqa: PLC0415

    mine, others = folder.parted(zoo.tasks)
    measured = mine.filter(is_measured())
    lines = [summary(measured)] if measured.height else []
    words = {(task.model, point.key): str(point) for task in zoo.tasks for point in task.points}
    for row in tally.failures:
        said = words[row["model"], row["settings"]]
        lines.append(f"{row['model']}, {said}: {row['status']}: {row['reason']}")
    if others.height:
        lines.append(
            f"the folder has {counted(others.height, 'further result')}, of models or settings "
            "that were not asked for; the report shows them as well"
        )
    counts = [f"{number} {status}" for status, number in tally.counts.most_common()]
    counts += [f"{tally.left_out} left for later"] * bool(tally.left_out)
    table = folder.path / TABLE
    lines += [
        f"{', '.join(counts)}, in {clock_time(took_s)}; the table is {table}, traces lie beside it",
        f"next: xsp zoo report {shlex.quote(str(folder.path))}",
    ]
    return "\n".join(lines)


def _as_json(tally: Tally, path: Path) -> str:
    from xsp.zoo import TABLE  # noqa: PLC0415

    said: dict[str, Any] = {"table": str(path / TABLE), "counts": dict(tally.counts)}
    said["left_out"] = tally.left_out
    names = ("model", "target", "settings", "status", "reason")
    said["failures"] = [{name: row[name] for name in names} for row in tally.failures]
    return json.dumps(said, indent=2)


def _code(tally: Tally) -> int:
    if not tally.counts["measured"] and tally.counts.total():
        return exit_code.NOT_MEASURED
    return exit_code.TARGET_FAILED if tally.failures else exit_code.OK
