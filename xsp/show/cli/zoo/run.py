"""`xsp zoo init`, `list` and `run`: writes a zoo file, says what a run would do, and measures."""

from __future__ import annotations

import json
import re
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xsp.show.cli import exit_code, terminal
from xsp.show.cli.option import Option, options, usage

if TYPE_CHECKING:
    from types import FrameType

    from xsp.answer.zoo import Folder, Planned, Point, Row, Tally, Task, Zoo

_FORMS = """\
\b
ZOO is a zoo file (NAME.toml, as xsp zoo init writes it) or a shorthand; several are one zoo:
  torchvision                     all of its classifiers
  timm:resnet*,vit_tiny*          models that patterns match
  transformers:bert,gpt2          types, with their default configurations
  keras                           all of keras.applications
  onnx:DIR                        every ONNX file in a folder
  models.py:make_models           what a function of yours makes
"""

_INIT_EPILOG = """\b
Examples:
  xsp zoo init                                 writes zoo.toml
  xsp zoo init overnight.toml
"""

_LIST_HELP = f"""Say what a run of ZOO would do, and about how long it takes.

{_FORMS}
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

_RUN_HELP = f"""Measure every model of ZOO, each in a process of its own.

{_FORMS}
Traces and one table, results.parquet, go to a folder. A model that crashes, needs too much memory
or too long, or wants to download gets a row with the reason, and xsp goes on with the next. The
same command again measures only what is missing there, and what failed or crashed. After a change
of versions, machine or file xsp measures again, and says so.
"""

_RUN_EPILOG = """\b
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
_STATES = {"complete": "complete", "again": "to be measured again", "to do": "to do"}

# Options that stand in place of the keys of the same names in a zoo file.
_OVERRIDES = (
    click.option("--batch", metavar="LIST", help="Batch sizes: 1,8, or 1..64 for doublings."),
    click.option("--levels", metavar="LEVELS", help="As for xsp profile: 2, or model,kernel."),
    click.option("--budget", type=float, metavar="SECONDS", help="Of measuring each point."),
    click.option("--threads", metavar="LIST", help="Threads of the framework and its libraries."),
    click.option(
        "--precision", metavar="LIST", help="float32, bfloat16, float16, float64, autocast."
    ),
    click.option("--compile", metavar="LIST", help="no,yes: eager, and compiled."),
    click.option("--framework", metavar="LIST", help="torch, tensorflow, jax, onnxruntime."),
    click.option("--device", help="Device that runs the models: cpu, cuda, cuda:1."),
    click.option("--time-limit", type=float, metavar="SECONDS", help="Of a point, with loading."),
    click.option("--memory-limit", metavar="SIZE", help='Of a model\'s process: "8 GiB".'),
    click.option(
        "--check/--no-check",
        default=None,
        help="Whether to verify that two calls of a model give the same output.",
    ),
)
_zoo_arguments = options(
    click.argument("zoo", nargs=-1, required=True, metavar="ZOO..."),
    click.option(
        "--only",
        multiple=True,
        metavar="PATTERN",
        help="Only models whose name or target matches: 'resnet*'. May be repeated.",
    ),
    *_OVERRIDES,
)


def folder_option(purpose: str, default: str) -> Option:
    """Return the decorator that adds the option `--output`, a folder."""
    return click.option(
        "-o",
        "--output",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="FOLDER",
        help=f"{purpose}  [default: {default}]",
    )


total_budget_option = click.option(
    "--total-budget",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Seconds after which no further measurement begins.  [default: no limit]",
)


def _zoo_of(given: dict[str, Any], output: Path | None) -> tuple[Zoo, Path]:
    """Return the zoo that a command's arguments describe, and the folder of its results.

    Raises:
        click.UsageError: They describe none; the message names the place.
        OSError: A zoo file cannot be read.
    """
    from xsp.answer.zoo import read_zoo  # noqa: PLC0415  # help and completion come at once

    texts, only = given.pop("zoo"), given.pop("only")
    overrides = {key: value for key, value in given.items() if value is not None}
    zoo = usage(lambda: read_zoo(*texts, overrides=overrides, only=only))
    return zoo, output or Path(re.sub(r"[^\w.-]+", "_", f"{zoo.name}-zoo"))


@click.command(name="init", epilog=_INIT_EPILOG)
@click.argument("file", default="zoo.toml", type=click.Path(dir_okay=False, path_type=Path))
def init(file: Path) -> int:
    """Write a commented zoo file to begin with; none that is there is overwritten."""
    from xsp.answer.zoo import template  # noqa: PLC0415

    if file.suffix != ".toml":
        raise click.UsageError(f"A zoo file ends in .toml (got {file}).")
    try:
        with file.open("x", encoding="utf-8") as new:
            new.write(template())
    except FileExistsError as error:
        raise click.UsageError(f"{file} exists. Choose another name.") from error
    terminal.say(f"wrote {file}; what it would measure: xsp zoo list {file}")
    return exit_code.OK


@click.command(name="list", help=_LIST_HELP, epilog=_LIST_EPILOG)
@_zoo_arguments
@folder_option("Folder of results of earlier runs.", "NAME-zoo")
def list_zoo(output: Path | None, **given: Any) -> int:
    """Say what a run of a zoo would do."""
    from xsp.answer.zoo import preview  # noqa: PLC0415
    from xsp.text import clock_time, counted  # noqa: PLC0415

    zoo, path = _zoo_of(given, output)
    planned = preview(zoo.tasks, path)
    models = counted(len({each.task.model for each in planned}), "model")
    said = [f"{zoo.name}: {models}, {counted(len(planned), 'point')}"]
    for state, words in _STATES.items():
        if number := sum(each.state == state for each in planned):
            said.append(f"{number} {words}")
    said.append(f"about {clock_time(sum(each.expected_s for each in planned))}")
    terminal.show("\n".join(["; ".join(said), *_lines(planned)]))
    return exit_code.OK


def _lines(planned: Iterable[Planned]) -> Iterator[str]:
    """Yield a line for each model, its settings, and its batches in the same state."""
    rows = []
    for (model, settings, state, why), group in groupby(
        planned, key=lambda each: (each.task.model, each.point.common, each.state, each.why)
    ):
        points = list(group)
        batches = ", ".join(str(each.point.spec.batch) for each in points if each.point.spec.batch)
        said = [f"batch {batches}"] * bool(batches) + [settings] * bool(settings)
        from xsp.text import clock_time  # noqa: PLC0415

        if state == "complete":
            words = state
        else:
            time = f"about {clock_time(sum(each.expected_s for each in points))}"
            words = f"again, {time}, because {why}" if why else f"{state}, {time}"
        rows.append((model, ", ".join(said), words))
    wide = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    for name, settings, state in rows:
        yield f"  {name:<{wide[0]}}  {settings:<{wide[1]}}  {state}"


def _address(ctx: click.Context, param: click.Parameter, text: str | None) -> str | None:
    """Refuse as an address what stands after --ray and is none, such as a zoo."""
    if text is None or text == _HERE or re.search(r":\d+$", text):
        return text
    raise click.BadParameter(
        f"{text!r} is no address of a cluster, as 10.0.0.1:6379 is: if it is the zoo, write it "
        "before --ray"
    )


@click.command(name="run", help=_RUN_HELP, epilog=_RUN_EPILOG)
@_zoo_arguments
@folder_option("Folder for traces and table.", "NAME-zoo")
@total_budget_option
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
    from xsp.answer.zoo import run, run_on_ray  # noqa: PLC0415

    zoo, path = _zoo_of(given, output)
    limit: dict[str, Any] = {"total_s": total_budget, "again": again}
    began = time.monotonic()
    with results_in(path) as folder, watching() as watch:
        if cluster is None:
            tally = run(zoo.tasks, folder, watch, **limit)
        else:
            address = None if cluster == _HERE else cluster
            tally = run_on_ray(zoo.tasks, folder, watch, address=address, **limit)
    took_s = time.monotonic() - began
    terminal.show(_as_json(tally, path) if as_json else _as_text(tally, zoo, folder, took_s))
    return code_of(tally)


@contextmanager
def results_in(path: Path) -> Iterator[Folder]:
    """Yield a folder of results that a run writes into, which Ctrl-C and SIGTERM end alike."""
    from xsp.answer.zoo import opened  # noqa: PLC0415

    with _terminable(), opened(path) as folder:
        for note in folder.notes:
            terminal.say(note)
        try:
            yield folder
        except KeyboardInterrupt:
            said = f"interrupted; the same command goes on, with what is complete in {path}"
            raise click.exceptions.Exit(terminal.fail(said, exit_code.INTERRUPTED)) from None


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may handle signals
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _as_text(tally: Tally, zoo: Zoo, folder: Folder, took_s: float) -> str:
    """Return a summary of the points' results, what failed, and how many have each status."""
    from xsp.answer.zoo import TABLE, is_measured, summary  # noqa: PLC0415
    from xsp.text import clock_time, counted  # noqa: PLC0415

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
    from xsp.answer.zoo import TABLE  # noqa: PLC0415

    said: dict[str, Any] = {"table": str(path / TABLE), "counts": dict(tally.counts)}
    said["left_out"] = tally.left_out
    names = ("model", "target", "settings", "status", "reason")
    said["failures"] = [{name: row[name] for name in names} for row in tally.failures]
    return json.dumps(said, indent=2)


def code_of(tally: Tally) -> int:
    """Return the exit code of a run."""
    if not tally.counts["measured"] and tally.counts.total():
        return exit_code.NOT_MEASURED
    return exit_code.TARGET_FAILED if tally.failures else exit_code.OK


@contextmanager
def watching(*, at_most: bool = False) -> Iterator[Lines]:
    """Yield what is told of a run, and shows it on standard error.

    Args:
        at_most: Whether fewer measurements may be made than are planned.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield Lines(at_most=at_most)
        return
    from rich.console import Console  # noqa: PLC0415  # rich is slow to import
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    # Refreshed by hand: a refreshing thread would disturb what is measured.
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as bar:
        yield Lines(bar, at_most=at_most)


class Lines:
    """Says a line for each measurement that has a result, above a bar of the whole run.

    Args:
        bar: The bar, of `rich.progress`; None: there is no terminal.
        at_most: Whether fewer measurements may be made than are planned.
    """

    def __init__(self, bar: Any = None, *, at_most: bool = False) -> None:
        self._bar, self._at_most = bar, at_most
        self._task = None if bar is None else bar.add_task("", total=None)
        self._points = self._done = self._failed = 0
        self._left_s = 0.0

    def planned(self, points: int, kept: int, left_s: float) -> None:
        """Say how many measurements there are, and how long they take."""
        from xsp.text import clock_time, counted  # noqa: PLC0415

        self._points, self._done, self._left_s = points, kept, left_s
        most = "up to " * self._at_most
        said = most + counted(points, "measurement")
        if kept:
            said += f", {kept} complete from before"
        self._say(said if kept == points else f"{said}; {most}about {clock_time(left_s)}")
        if self._bar is not None:
            self._bar.update(self._task, total=points, completed=kept)

    def began(self, task: Task, point: Point, again: str) -> None:
        """Say why a point is measured again."""
        if again:
            self._say(f"{task.model}, {point}: measured again, because {again}")

    def state(self, task: Task, point: Point, state: str) -> None:
        """Show the state of a point in the bar; of lines only that others have to end first."""
        from xsp.answer.zoo import WAITING  # noqa: PLC0415

        said = f"{task.model}, {point}: {state}"
        if self._bar is not None:
            far = _plain(f"{self._far()}; {said}")
            self._bar.update(self._task, description=far, completed=self._done)
            self._bar.refresh()
        elif state == WAITING:
            self._say(said)

    def ended(self, task: Task, point: Point, row: Row, left_s: float) -> None:
        """Say what became of a point, and how far the run is."""
        from xsp.answer.zoo import has_failed  # noqa: PLC0415

        self._done += 1
        self._failed += has_failed(row)
        self._left_s = left_s
        from xsp.answer.analyses import text_of  # noqa: PLC0415
        from xsp.text import duration  # noqa: PLC0415

        if row["status"] != "measured":
            outcome = f"{row['status']}: {(row['reason'] or '').partition(chr(10))[0]}"
        else:
            rate = row.get("throughput_per_s")
            said = "" if rate is None else f", {text_of('throughput_per_s', rate)}"
            outcome = duration(row["latency_ns"]) + said
        self._say(f"[{self._far()}] {task.model}, {point}: {outcome}")

    def stopped(self, points: int, why: str) -> None:
        """Say how many points are left out."""
        self._points -= points
        self._say(f"{points} left out, because {why}")

    def _far(self) -> str:
        from xsp.text import clock_time  # noqa: PLC0415

        failed = f", {self._failed} failed" if self._failed else ""
        left = f", {clock_time(self._left_s)} left" if self._done < self._points else ""
        return f"{self._done}/{self._points}{failed}{left}"

    def _say(self, text: str) -> None:
        if self._bar is None:
            terminal.say(text)
        else:
            self._bar.console.print(_plain(text), highlight=False)


def _plain(text: str) -> str:
    """Return text in which rich finds no markup, and the terminal no control characters."""
    from rich.markup import escape  # noqa: PLC0415

    from xsp.text import printable  # noqa: PLC0415

    return escape(printable(text))
