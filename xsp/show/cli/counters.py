"""`xsp counters` has Nsight Compute count hardware events of the kernels that deserve it."""

from __future__ import annotations

import shlex
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xsp.show.cli import terminal
from xsp.show.cli.answer.table import drawn
from xsp.show.cli.option import (
    TargetCommand,
    complete_target,
    model_options,
    output_option,
    spec_of,
    target_failures,
    usage,
)
from xsp.show.cli.reading import read

if TYPE_CHECKING:
    import polars as pl

    from xsp.measuring.target import Spec
    from xsp.trace import Trace

_HELP = """Count hardware events of the kernels that deserve it, with Nsight Compute.

\b
SUBJECT is one of
  a trace with kernels    of xsp or of another tool; PROGRAM runs it again:
                          xsp counters train.xsp python train.py
  a target                a model or function, as for xsp profile; xsp
                          measures it first, with levels=4

xsp chooses the slowest kernels until they make most of the device's time, says
why, and has ncu count those alone. The counters join the trace, for
kernel-roofline and the advice. Without PROGRAM, xsp prints ncu's command.
"""

_EPILOG = """\b
Examples:
  xsp counters train.xsp                            the kernels, and the command
  xsp counters train.xsp python train.py --epochs 1
  xsp counters torchvision:resnet50 --device cuda
  xsp counters transformers:bert --device cuda --top 5 --metrics memory
  xsp analyze kernel-roofline train-counters.xsp
"""
_SECONDS = 5.0  # of measuring a target, as `xsp profile` takes


@click.command(cls=TargetCommand, help=_HELP, epilog=_EPILOG)
@click.option(
    "--top", type=click.IntRange(min=1), metavar="N", help="Most kernels to count.  [default: 5]"
)
@click.option(
    "--until",
    type=click.FloatRange(min=0, max=100, min_open=True),
    default=80,
    show_default=True,
    metavar="PERCENT",
    help="Stop choosing at this share of the device's time.",
)
@click.option(
    "--metrics",
    "counters",
    type=click.Choice(["roofline", "memory", "scheduler"]),
    default="roofline",
    show_default=True,
    help="What to count.",
)
@click.option(
    "--launches",
    type=click.IntRange(min=1),
    metavar="N",
    help="Most launches to count.  [default: those of one step, at most 200]",
)
@click.option(
    "--limit",
    type=click.FloatRange(min=0, min_open=True),
    default=300,
    show_default=True,
    metavar="SECONDS",
    help="End ncu after so many seconds.",
)
@click.option("--print", "only_print", is_flag=True, help="Print ncu's command; run nothing.")
@output_option("File for the trace with counters.  [default: NAME-counters.xsp]")
@model_options
@click.argument("target", metavar="SUBJECT", shell_complete=complete_target)
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
def counters(target: str, program: tuple[str, ...], **options: Any) -> None:
    """Choose kernels, run ncu, and join what it counted."""
    from xsp.answer.counters import chosen, command, run, with_counters  # noqa: PLC0415
    from xsp.machine import check_writable  # noqa: PLC0415

    recorded = Path(target).exists() and not target.endswith(".py")
    if target.endswith(".xsp") and not recorded:
        raise click.UsageError(f"There is no file {target}. Make it with: xsp profile --levels 4")
    if program and program[0].startswith("-"):
        raise click.UsageError(
            f"Options stand before the trace ({program[0]} comes after it). Write: xsp counters "
            f"{shlex.join(program)} {target} PROGRAM"
        )
    spec = None if recorded else _spec(target, program, options)
    output = options["output"] or Path(
        f"{Path(target).name.split('.')[0] if spec is None else spec.name}-counters.xsp"
    )
    check_writable(output)
    trace = read([Path(target)]) if spec is None else _measured(spec)
    table = chosen(trace, top=options["top"], until_pct=options["until"])
    terminal.show(drawn(_listed(table)))
    taken = table.filter("chosen")
    if taken.is_empty():
        terminal.say("no kernel is left to count")
        return
    names = taken["kernel"].to_list()
    launches = options["launches"] or min(int(taken["launches"].sum()), 200)
    with ExitStack() as stack:
        if spec is not None:
            from xsp.measuring.target import single_step_program  # noqa: PLC0415

            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="xsp-step-"))
            program = tuple(single_step_program(spec, Path(folder)))
        shown = program or ("python", "…")
        line = usage(
            lambda: command(
                names, launches, shown, counters=options["counters"], marked=spec is not None
            )
        )
        if options["only_print"] or not program:
            terminal.show(shlex.join(line).replace("'…'", "…"))
            return
        terminal.say(f"counting {launches} launches with ncu")
        counted = with_counters(trace, run(line, options["limit"]), names)
    terminal.show(drawn(_summary(counted, names)))
    terminal.say(terminal.saved(counted, output))


def _spec(subject: str, program: tuple[str, ...], options: dict[str, Any]) -> Spec:
    """Parse a target, which runs on the first GPU unless --device says another."""
    from xsp.measuring.target import Spec  # noqa: F401, PLC0415

    spec = spec_of(subject, (), {**options, "inputs": options["inputs"]})
    if spec.kind == "script":
        raise click.UsageError(
            f"A script has no single step ({subject}). Profile it with: xsp profile --levels 4 "
            f"{subject}, then: xsp counters {Path(subject).stem}.xsp python {subject}"
        )
    if program:
        raise click.UsageError(
            f"A target takes no program ({' '.join(program)}). Options stand before the target."
        )
    return replace(spec, device=spec.device or "cuda") if spec.kind == "model" else spec


def _measured(spec: Spec) -> Trace:
    from xsp.measuring.target import measure_isolated  # noqa: PLC0415
    from xsp.record.session import settings_of  # noqa: PLC0415

    with ExitStack() as ending, target_failures(spec.target):
        return measure_isolated(spec, settings_of("4", budget=_SECONDS), ending=ending)


def _listed(table: pl.DataFrame) -> pl.DataFrame:
    """List the kernels that were chosen, and those that a reason of their own left out."""
    import polars as pl  # noqa: PLC0415

    return table.filter(pl.col("reason") != "").drop("chosen")


def _summary(trace: Trace, names: list[str]) -> pl.DataFrame:
    """Tabulate what is now known of the counted kernels."""
    from xsp.answer.analyses import kernel_by_name  # noqa: PLC0415

    table = kernel_by_name(trace)
    known = ("kernel", "count", "latency_ns", "share_pct", "flops_per_byte", "flops_per_s",
             "memory_bound", "occupancy_pct", "work_source")  # fmt: skip
    return table.filter(table["kernel"].is_in(names)).select(*known)
