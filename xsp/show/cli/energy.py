"""`xsp energy` measures the energy of a step and of its longest layers, and prints the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from xsp.show.cli import terminal
from xsp.show.cli.option import (
    TargetCommand,
    complete_target,
    model_options,
    output_option,
    spec_of,
    target_failures,
    usage,
)

_EPILOG = """\b
Examples:
  xsp energy torchvision:resnet50 --batch 32 --device cuda
  xsp energy transformers:bert --top 4 -o bert.xsp
"""


@click.command(cls=TargetCommand, epilog=_EPILOG)
@click.argument("target", shell_complete=complete_target)
@click.option(
    "--top",
    type=click.IntRange(min=0),
    default=8,
    show_default=True,
    metavar="N",
    help="Layers to repeat by themselves, the longest first.",
)
@model_options
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="Seconds of measuring latencies; energy takes half a minute more.",
)
@output_option("File for the trace.  [default: NAME.xsp]")
def energy(target: str, **options: Any) -> None:
    """Measure the energy of a step of TARGET, and of its longest layers.

    xsp reads the devices for 2 s while nothing runs, then for 30 s of steps. It repeats each of
    the longest layers of a PyTorch model by itself for 2 s. `xsp doctor` lists what can be read.
    """
    from xsp.answer.analyses import energy as table  # noqa: PLC0415
    from xsp.machine import check_writable  # noqa: PLC0415
    from xsp.measuring.target import measure_energy  # noqa: PLC0415
    from xsp.record.session import limited_threads, settings_of  # noqa: PLC0415
    from xsp.show.cli.answer import drawn  # noqa: PLC0415

    spec = spec_of(target, (), options)
    settings = usage(lambda: settings_of("layers", budget=options["budget"], energy=True))
    if usage(lambda: spec.kind) == "script":
        raise click.UsageError(
            f"A script runs once ({target}). Give path.py:function, or use xsp profile --energy."
        )
    output = options["output"] or Path(f"{spec.name}.xsp")
    check_writable(output)
    with limited_threads(options["threads"]), target_failures(target):
        trace = measure_energy(spec, settings, options["top"])
    saved = terminal.saved(trace, output)
    terminal.show(drawn(table(trace)))
    for warning in trace.warnings:
        terminal.say(f"⚠ {warning.code}: {warning.message}")
    terminal.say(saved)
