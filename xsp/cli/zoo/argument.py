"""Arguments that the commands of a zoo share: files, shorthands and options in, the zoo out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xsp.cli.option import options, usage

if TYPE_CHECKING:
    from xsp.zoo import Zoo

FORMS = """\
\b
ZOO is a zoo file (NAME.toml, as xsp zoo init writes it) or a shorthand; several are one zoo:
  torchvision                     all of its classifiers
  timm:resnet*,vit_tiny*          models that patterns match
  transformers:bert,gpt2          types, with their default configurations
  keras                           all of keras.applications
  onnx:DIR                        every ONNX file in a folder
  models.py:make_models           what a function of yours makes
"""

_OVERRIDES = options(
    click.option("--batch", metavar="LIST", help="Batch sizes: 1,8, or 1..64 for doublings."),
    click.option("--levels", metavar="LEVELS", help="As for xsp profile: 2, or model,kernel."),
    click.option("--budget", type=float, metavar="SECONDS", help="Of measuring each point."),
    click.option("--threads", metavar="LIST", help="Threads of the framework and its libraries."),
    click.option(
        "--precision", metavar="LIST", help="float32, bfloat16, float16, float64, autocast."
    ),
    click.option("--compile", metavar="LIST", help="no,yes: eager, and compiled."),
    click.option("--framework", metavar="LIST", help="torch, tensorflow, jax, onnxruntime."),
    click.option("--device", help="Where models run: cpu, cuda, cuda:1."),
    click.option("--time-limit", type=float, metavar="SECONDS", help="Of a point, with loading."),
    click.option("--memory-limit", metavar="SIZE", help='Of a model\'s process: "8 GiB".'),
    click.option(
        "--check/--no-check",
        default=None,
        help="Whether to verify that two calls of a model give the same output.",
    ),
)
_KEYS = (
    "batch",
    "levels",
    "budget",
    "threads",
    "precision",
    "compile",
    "framework",
    "device",
    "time_limit",
    "memory_limit",
    "check",
)

zoo_arguments = options(
    click.argument("zoo", nargs=-1, required=True, metavar="ZOO..."),
    click.option(
        "--only",
        multiple=True,
        metavar="PATTERN",
        help="Only models whose name or target matches: 'resnet*'. May be repeated.",
    ),
    _OVERRIDES,
)
"""Adds the argument ZOO, and the options that stand in place of what the zoo says, to a command."""


def zoo_of(given: dict[str, Any]) -> Zoo:
    """Return the zoo that the values of `zoo_arguments` describe.

    Args:
        given: Values of the command's arguments and options; of others nothing is read.

    Raises:
        click.UsageError: They describe none; the message names file and line.
        OSError: A zoo file cannot be read.
    """
    from xsp.zoo import read_zoo  # noqa: PLC0415  # help and completion come at once

    overrides = {key: given[key] for key in _KEYS if given[key] is not None}
    return usage(lambda: read_zoo(*given["zoo"], overrides=overrides, only=given["only"]))


def folder_of(zoo: Zoo, output: Path | None) -> Path:
    """Return the folder of a zoo's results: as asked for, else `NAME-zoo`."""
    return output or Path(re.sub(r"[^\w.-]+", "_", f"{zoo.name}-zoo"))
