"""`xsp sweep`: a target and lists of settings in, traces, a table and the best batch out."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xsp.cli import exit_code, terminal
from xsp.cli.option import complete_target, target_failures, usage
from xsp.cli.sweep.answer import as_json, as_text, listing
from xsp.cli.sweep.progress import watching

if TYPE_CHECKING:
    from types import FrameType

    from xsp.session import Settings
    from xsp.sweep import Folder, Grid, Result
    from xsp.target import Spec

_HELP = """Measure TARGET at several settings: which batch size is best, and what do others cost?

\b
TARGET is a model or a function, as for xsp profile; a function is given the
settings that it has parameters for. Every combination of the settings is a
point, measured like xsp profile in processes of its own.

Without --batch the batch doubles from 1 until memory ends, until throughput rises by no more than
5 % in two doublings, or until --total-budget is over.

The traces and a table, sweep.parquet, go to a folder. The same command again measures only what is
missing there; after a change of versions, machine or file it measures again, and says so.
"""

_EPILOG = """\b
Examples:
  xsp sweep torchvision:resnet50
  xsp sweep torchvision:resnet50 --batch 1..64 --threads 1,2 --target-latency 50ms
  xsp sweep transformers:bert --batch 1,8 --set seq=128,512 --precision float32,bfloat16
  xsp sweep timm:vit_base_patch16_224 --batch 1,8 --compile no,yes -o vit/
  xsp sweep predict.py:run --batch 1,2,4 --set layers=2,4 --json
  xsp sweep torchvision:resnet50 --dry-run

\b
Exit codes:
    0  every point was measured, ran out of memory, or was skipped for that
    1  a point failed otherwise; the others are measured
    3  not a single point could be measured
  130  interrupted; the same command goes on
"""

_BUDGET_S = 5.0  # of a point, as of xsp profile
_TIMES = {"ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}


def _parsed(function: str) -> Callable[[click.Context, click.Parameter, str | None], Any]:
    """Return a callback that makes values of a text by a function of the room `sweep`."""

    def parse(ctx: click.Context, param: click.Parameter, text: str | None) -> Any:
        from xsp import sweep  # noqa: PLC0415  # help and completion come at once

        try:
            return None if text is None else getattr(sweep, function)(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return parse


def _latency(ctx: click.Context, param: click.Parameter, text: str | None) -> float | None:
    """Return a latency in ns, from a text such as `50ms`."""
    if text is None:
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*(ns|us|µs|ms|s)\s*", text)
    if not match or not float(match[1]):
        raise click.BadParameter(f"{text!r} is no time: write 50ms, 200us or 1.5s")
    return float(match[1]) * _TIMES[match[2]]


@click.command(help=_HELP, epilog=_EPILOG)
@click.argument("target", shell_complete=complete_target)
@click.option(
    "--batch",
    "batches",
    callback=_parsed("numbers"),
    metavar="LIST",
    help="Batch sizes: 1,2,4, or 1..64 for doublings.  [default: doubling from 1]",
)
@click.option(
    "--threads",
    callback=_parsed("numbers"),
    metavar="LIST",
    help="Threads of the framework, OpenMP, MKL and OpenBLAS.  [default: as they choose]",
)
@click.option(
    "--set",
    "inputs",
    multiple=True,
    metavar="NAME=LIST",
    help="Of a transformers model seq=128,512, the length of texts; of a model in a file sizes "
    "that it leaves free; of a function any parameter. May be repeated.",
)
@click.option(
    "--precision",
    "precisions",
    callback=_parsed("precisions"),
    metavar="LIST",
    help="Of a model's weights and inputs: float32, bfloat16, float16, float64, autocast.",
)
@click.option(
    "--framework",
    "frameworks",
    callback=_parsed("frameworks"),
    metavar="LIST",
    help="What runs a model that several can run: torch, tensorflow, jax, onnxruntime.  "
    "[default: its own]",
)
@click.option(
    "--compile",
    "compiled",
    callback=_parsed("ways_to_run"),
    metavar="LIST",
    help="no,yes: eager, and by torch.compile, tf.function or jax.jit.  [default: yes of keras: on "
    "TensorFlow and JAX and of jax:, else no]",
)
@click.option("--device", help="Where a model runs: cpu, cuda, cuda:1.  [default: cpu]")
@click.option("--train", is_flag=True, help="A training step: forward, loss, backward, SGD.")
@click.option(
    "--levels",
    default="1",
    show_default=True,
    metavar="LEVELS",
    help="As for profile; 1 times the whole model, which is quickest, 2 and 3 tell why.",
)
@click.option(
    "--runs", type=click.IntRange(min=1), metavar="N", help="Evaluations on each rung of a point."
)
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    default=_BUDGET_S,
    show_default=True,
    metavar="SECONDS",
    help="Seconds of measuring each point; loading TARGET comes on top.",
)
@click.option(
    "--total-budget",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Seconds after which no further point begins.  [default: no limit]",
)
@click.option(
    "--target-latency",
    callback=_latency,
    metavar="TIME",
    help="Find the batch of most throughput whose latency is at most this: 50ms.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Where traces and table go.  [default: NAME-sweep]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the table and the best as JSON.")
@click.option("--dry-run", is_flag=True, help="Print the points and the expected time, and end.")
def sweep(target: str, **options: Any) -> int:
    """Measure a target at several settings."""
    from xsp.sweep import basis_of, opened, peeked  # noqa: PLC0415
    from xsp.target import Spec  # noqa: PLC0415

    spec = Spec(target, device=options["device"], train=options["train"])
    if usage(lambda: spec.kind) == "script":
        raise click.UsageError(
            f"{target} is a script, which runs as it is: give path.py:function, and the function "
            "parameters for the settings"
        )
    plan = _plan(options)
    path = options["output"] or Path(f"{spec.name}-sweep")
    grid = _grid(spec, options)
    basis = basis_of(spec, plan)
    if options["dry_run"]:
        terminal.show(listing(grid, peeked(path, basis), plan))
        return exit_code.OK
    with opened(path, basis) as folder:
        return _sweep(grid, plan, folder, options)


def _plan(options: dict[str, Any]) -> Settings:
    from xsp.session import settings_of  # noqa: PLC0415

    runs, budget = options["runs"], options["budget"]
    return usage(lambda: settings_of(options["levels"], runs=runs, budget=budget))


def _grid(spec: Spec, options: dict[str, Any]) -> Grid:
    from xsp.sweep import grid_of, wished  # noqa: PLC0415

    inputs = usage(lambda: wished(options["inputs"], literal=spec.source != "transformers"))
    axes = ("threads", "precisions", "compiled", "frameworks")
    chosen = {name: options[name] or () for name in axes}
    with target_failures(spec.target):
        return grid_of(spec, options["batches"], inputs=inputs, **chosen)


def _sweep(grid: Grid, plan: Settings, folder: Folder, options: dict[str, Any]) -> int:
    from xsp.sweep import curves_of, expected_s, run  # noqa: PLC0415

    expected = expected_s(grid.points, folder, plan)
    with terminable(), watching(grid, folder.path, expected) as watch:
        try:
            results = run(grid, plan, folder, watch, total_s=options["total_budget"])
        except KeyboardInterrupt:
            code = exit_code.INTERRUPTED
            return terminal.fail(
                f"interrupted; the same command goes on, with what is complete in {folder.path}",
                code,
            )
    target_ns = options["target_latency"]
    curves = curves_of(grid.curves, results, folder, target_ns)
    if options["as_json"]:
        terminal.show(as_json(folder, results, curves, target_ns))
    else:
        terminal.show(as_text(folder, results, curves))
    return _code(results)


def _code(results: list[Result]) -> int:
    from xsp.sweep import Status  # noqa: PLC0415

    states = {result.status for result in results}
    if Status.MEASURED not in states:
        return exit_code.NOT_MEASURED
    return exit_code.TARGET_FAILED if Status.FAILED in states else exit_code.OK


@contextmanager
def terminable() -> Iterator[None]:
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
