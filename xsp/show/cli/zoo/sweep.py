"""`xsp sweep`: measures a zoo of one model over lists of settings, and names the best batch."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xsp.show.cli import exit_code, terminal
from xsp.show.cli.answer.table import drawn
from xsp.show.cli.option import complete_target, target_failures, usage
from xsp.show.cli.zoo.run import code_of, folder_option, results_in, total_budget_option, watching

if TYPE_CHECKING:
    import polars as pl

    from xsp.answer.zoo import Task

_HELP = """Measure TARGET at several settings: which batch size is best, and what do others cost?

\b
TARGET is a model or a function, as for xsp profile; a function is given the
settings that it has parameters for. Every combination of the settings is a
point, and the points that differ in their batch alone have a process of
their own, as the models of xsp zoo.

Without --batch the batch doubles from 1 until memory ends, until throughput rises by no more than
5 % in two doublings, or until --total-budget is over.

The traces and a table, results.parquet, go to a folder, which xsp zoo report reads as well. The
same command again measures only what is missing there; after a change of versions, machine or file
it measures again, and says so.
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

_TIMES = {"ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}
_LATENCY = tuple(f"{part}_ns" for part in ("latency", "latency_low", "latency_high"))
_RATE = tuple(f"{part}_per_s" for part in ("throughput", "throughput_low", "throughput_high"))


def _parsed(function: str) -> Callable[[click.Context, click.Parameter, str | None], Any]:
    """Return a callback that makes values of a text by a function of the room `zoo`."""

    def parse(ctx: click.Context, param: click.Parameter, text: str | None) -> Any:
        from xsp.answer import zoo  # noqa: PLC0415  # help and completion come at once

        try:
            return None if text is None else getattr(zoo, function)(text)
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
    help="Framework that runs the model, if several can: torch, tensorflow, jax, onnxruntime.  "
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
@click.option("--device", help="Device that runs a model: cpu, cuda, cuda:1.  [default: cpu]")
@click.option("--train", is_flag=True, help="A training step: forward, loss, backward, SGD.")
@click.option(
    "--levels",
    default="1",
    show_default=True,
    metavar="LEVELS",
    help="As for profile; 1 times the whole model, which is quickest, 2 and 3 tell why.",
)
@click.option(
    "--runs", type=click.IntRange(min=1), metavar="N", help="Steps on each pass of a point."
)
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="Seconds of measuring each point; loading TARGET comes on top.",
)
@total_budget_option
@click.option(
    "--target-latency",
    callback=_latency,
    metavar="TIME",
    help="Find the batch of most throughput whose latency is at most this: 50ms.",
)
@folder_option("Folder for traces and table.", "NAME-sweep")
@click.option("--json", "as_json", is_flag=True, help="Print the table and the best as JSON.")
@click.option("--dry-run", is_flag=True, help="Print the points and the expected time, and end.")
def sweep(target: str, **options: Any) -> int:
    """Measure a target at several settings."""
    from xsp.answer.zoo import run, sweep_results  # noqa: PLC0415
    from xsp.measuring.target import Spec  # noqa: PLC0415

    spec = Spec(target, device=options["device"], train=options["train"])
    if usage(lambda: spec.kind) == "script":
        raise click.UsageError(
            f"sweep cannot set options of a script ({target}). Give path.py:function with "
            "parameters."
        )
    from xsp.answer.zoo import sweep_tasks, wished  # noqa: PLC0415
    from xsp.record.session import settings_of  # noqa: PLC0415

    runs, budget = options["runs"], options["budget"]
    plan = usage(lambda: settings_of(options["levels"], runs=runs, budget=budget))
    inputs = usage(lambda: wished(options["inputs"], literal=spec.source != "transformers"))
    axes = ("threads", "precisions", "compiled", "frameworks")
    chosen = {name: options[name] or () for name in axes}
    with target_failures(spec.target):
        tasks = sweep_tasks(spec, plan, options["batches"], inputs=inputs, **chosen)
    path = options["output"] or Path(f"{spec.name}-sweep")
    if options["dry_run"]:
        terminal.show(_plan(tasks, path))
        return exit_code.OK
    with results_in(path) as folder, watching(at_most=tasks[0].doubling) as watch:
        tally = run(tasks, folder, watch, total_s=options["total_budget"])
    results = sweep_results(tasks, folder)
    terminal.show(_answer(tasks, results, path, options))
    return code_of(tally)


def _plan(tasks: Sequence[Task], path: Path) -> str:
    """Return the points of a sweep, and how long it is expected to take."""
    from xsp.answer.zoo import preview  # noqa: PLC0415
    from xsp.text import clock_time, counted  # noqa: PLC0415

    planned = preview(tasks, path)
    most = "up to " * tasks[0].doubling
    time = clock_time(sum(each.expected_s for each in planned))
    lines = [f"{most}{counted(len(planned), 'point')}, {most}about {time}, to {path}"]
    states = (
        (each.point, f"again, for {each.why}" if each.why else each.state) for each in planned
    )
    return "\n".join([*lines, *(f"  {point}: {state}" for point, state in states)])


def _answer(
    tasks: Sequence[Task], results: pl.DataFrame, path: Path, options: dict[str, Any]
) -> str:
    """Return the points and the best batch of each curve, as a table with sentences or as JSON."""
    from xsp.answer.zoo import TABLE, curves_of, verdict  # noqa: PLC0415

    target_ns = options["target_latency"]
    curves, best = curves_of(tasks, results, target_ns), verdict(tasks, results)
    if options["as_json"]:
        said = {"table": str(path / TABLE), "target_latency_ns": target_ns}
        points, found = results.to_dicts(), [asdict(curve) for curve in curves]
        return json.dumps({**said, "points": points, "curves": found, "verdict": best}, indent=2)
    words = {(task.model, point.key): point for task in tasks for point in task.points}
    lines = [drawn(_shown(results))] if results.height else []
    for row in results.drop_nulls("reason").iter_rows(named=True):
        point = words[row["model"], row["settings"]]
        lines.append(f"{point}: {row['status']}: {row['reason']}")
    for curve in curves:
        lead = f"{curve.name}: " if curve.name and len(curves) > 1 else ""
        lines += [f"{lead}{sentence}" for sentence in curve.sentences]
    lines += [best] if best else []
    return "\n".join([*lines, f"the table is {path / TABLE}, the traces lie beside it"])


def _shown(results: pl.DataFrame) -> pl.DataFrame:
    """Return the columns that people read: settings that differ, and numbers."""
    import polars as pl  # noqa: PLC0415

    settings = ["batch", "threads", "framework", "precision", "compiled"]
    settings += [name for name in results.columns if name.startswith("set.")]
    told = [name for name in settings if name == "batch" or results[name].n_unique() > 1]
    memory = pl.coalesce("peak_device_memory_bytes", "peak_memory_bytes")
    table = results.select(
        *told,
        *_LATENCY,
        *_RATE,
        memory.alias("peak_memory_bytes"),
        "status",
    )
    if not results["reason"].count():  # all were measured
        table = table.drop("status")
    return table.select(name for name in table.columns if table[name].count())
