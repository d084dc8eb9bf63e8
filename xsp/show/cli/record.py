"""`xsp record` measures a target and saves the raw records of all its levels."""

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
  xsp record torchvision:resnet50 --levels 4 --device cuda
  xsp record transformers:bert -o bert.xsprec
"""


@click.command(cls=TargetCommand, epilog=_EPILOG, hidden=True)
@click.argument("target", shell_complete=complete_target)
@click.option("--levels", default="3", show_default=True, metavar="LEVELS", help="As for profile.")
@model_options
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    metavar="N",
    help="Steps on each pass; the records of each are kept.",
)
@output_option("File for the records.  [default: NAME.xsprec]")
def record(target: str, **options: Any) -> None:
    """Measure TARGET in this process, and keep the raw records of all its levels.

    A recording is no trace yet: xsp.testing.replay makes one of it, on any machine, with or
    without the devices. TARGET is what it is for xsp profile, but no script.
    """
    from xsp.machine import check_writable  # noqa: PLC0415
    from xsp.measuring.call import warning_sentences  # noqa: PLC0415
    from xsp.measuring.target import record_target  # noqa: PLC0415
    from xsp.record.session import limited_threads, settings_of  # noqa: PLC0415

    spec = spec_of(target, (), options)
    settings = usage(lambda: settings_of(options["levels"], runs=options["runs"]))
    if usage(lambda: spec.kind) == "script":
        raise click.UsageError(f"{target} is a script; give path.py:function to record a part")
    output = options["output"] or Path(f"{spec.name}.xsprec")
    check_writable(output)
    with limited_threads(options["threads"]), target_failures(target):
        recording = record_target(spec, settings)
    saved = recording.save(output)
    for sentence in warning_sentences(saved):
        terminal.say(sentence)
    terminal.say(f"saved to {saved}; make its trace with: xsp.testing.replay({str(saved)!r})")
