"""Options of the command line: decorators for commands, and checks of what a user passes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from xsp.show.cli.exit_code import TARGET_FAILED

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from xsp.measuring.target import Spec, Value


T = TypeVar("T")
Command = Callable[..., Any]
Option = Callable[[Command], Command]


def options(*several: Option) -> Option:
    """Return a decorator that adds several options to a command, in this order."""

    def add(command: Command) -> Command:
        for option in reversed(several):
            command = option(command)
        return command

    return add


model_options = options(
    click.option(
        "--batch", type=click.IntRange(min=1), help="Batch size of a model.  [default: 1]"
    ),
    click.option("--device", help="Device that runs a model: cpu, cuda, cuda:1.  [default: cpu]"),
    click.option("--train", is_flag=True, help="A training step: forward, loss, backward, SGD."),
    click.option(
        "--framework",
        metavar="NAME",
        help="Framework that runs the model: torch, tensorflow, jax, onnxruntime.  "
        "[default: the model's own]",
    ),
    click.option(
        "--compile/--no-compile",
        "compiled",
        default=None,
        help="Compile first: torch.compile, tf.function, jax.jit.  [default: only keras: on "
        "TensorFlow and JAX, and jax:]",
    ),
    click.option(
        "--precision",
        metavar="TYPE",
        help="Type of weights and inputs: float32, bfloat16, float16, float64, autocast.",
    ),
    click.option(
        "--set",
        "inputs",
        multiple=True,
        metavar="NAME=VALUE",
        help="A further setting: seq=128 of a transformers model, a dynamic input size of a file, "
        "a parameter of a function. May be repeated.",
    ),
    click.option(
        "--threads",
        type=click.IntRange(min=1),
        metavar="N",
        help="Threads of the framework, OpenMP, MKL and OpenBLAS.  [default: as they choose]",
    ),
)

span_options = options(
    click.option(
        "--max-spans",
        type=click.IntRange(min=1),
        metavar="N",
        help="Most spans to export; xsp leaves out deeper levels and sums up small spans.  "
        "[default: 2000; for Perfetto and Parquet all]",
    ),
    click.option("--full", is_flag=True, help="Export every span."),
)

# What a tree shows beside times, shares and names: arguments of `Trace.tree`.
tree_options = options(
    click.option(
        "--errors", is_flag=True, help="Show the error of each time, and why it is not exact."
    ),
    click.option("--overhead", is_flag=True, help="Show the overhead removed from each row."),
    click.option("--warnings", is_flag=True, help="Show all warnings and notes."),
)

timeline_option = click.option(
    "--timeline",
    type=click.Choice(["exact", "measured"]),
    default="exact",
    show_default=True,
    help="Times to show and export: without the profiler, or as measured.",
)


def output_option(purpose: str) -> Option:
    """Return the decorator that adds the option `--output`.

    Args:
        purpose: Help text of the option.
    """
    return click.option(
        "-o",
        "--output",
        type=click.Path(dir_okay=False, path_type=Path),
        callback=_in_a_folder,
        metavar="FILE",
        help=purpose,
    )


def _in_a_folder(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a file whose folder does not exist, before anything is measured."""
    if path is not None and not path.parent.is_dir():
        raise click.BadParameter(f"there is no folder {path.parent}. Make it first.")
    return path


def usage(work: Callable[[], T]) -> T:
    """Call `work`, and make its `ValueError` an error of usage."""
    try:
        return work()
    except ValueError as error:
        raise click.UsageError(str(error)) from error


class TargetFailed(click.ClickException):
    """The target raised; its traceback has been shown."""

    exit_code = TARGET_FAILED


@contextmanager
def target_failures(target: str) -> Iterator[None]:
    """Turn the exceptions of a target into errors of the command line.

    Raises:
        click.UsageError: There is no such target.
        TargetFailed: The target raised.
    """
    from xsp.errors import TargetFailedError, UnknownTargetError  # noqa: PLC0415

    try:
        yield
    except UnknownTargetError as error:
        raise click.UsageError(str(error)) from error
    except TargetFailedError as error:
        click.echo(error.traceback, err=True, nl=False)
        raise TargetFailed(f"{target} could not be measured: {error}") from error


class TargetCommand(click.Command):
    """A command whose options may also stand after the target, unless the target is a script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse options before the target, and options after a target that is no script."""
        ctx.allow_interspersed_args = False
        options, _, _ = self.make_parser(ctx).parse_args(list(args))
        # Arguments after a script are the script's own; a model or function has none.
        target = options.get("target")
        if not isinstance(target, str) or ":" not in target:
            looks_like_script = isinstance(target, str)
        else:
            from xsp.measuring.target import SOURCES  # noqa: PLC0415

            looks_like_script = target.endswith(".py") and target.partition(":")[0] not in SOURCES
        ctx.allow_interspersed_args = not looks_like_script
        return super().parse_args(ctx, args)


def spec_of(target: str, arguments: tuple[str, ...], options: dict[str, Any]) -> Spec:
    """Return the specification of a target with the options of `model_options`.

    Raises:
        click.UsageError: An option's value is none that there is.
    """
    from xsp.measuring.target import Spec  # noqa: PLC0415

    spec = Spec(target, arguments, options["batch"], options["device"], train=options["train"])
    usage(lambda: spec.kind)
    literal = spec.source != "transformers"
    inputs: tuple[tuple[str, Value], ...] = ()
    asked = [name for name in ("precision", "framework") if options[name] is not None]
    if options["inputs"] or asked:
        from xsp.answer import zoo  # noqa: PLC0415  # takes half a second

        inputs = usage(lambda: zoo.single(options["inputs"], literal=literal))
        for name in asked:
            if len(usage(partial(getattr(zoo, f"{name}s"), options[name]))) > 1:
                raise click.UsageError(
                    f"--{name} takes one value ({options[name]}). Use xsp sweep for several."
                )
    chosen = replace(
        spec,
        inputs=inputs,
        precision=options["precision"],
        compiled=options["compiled"],
        framework=options["framework"],
    )
    usage(lambda: chosen.runs_on)
    return chosen


def check_usage(spec: Spec, options: dict[str, Any]) -> None:
    """Verify that the options of `xsp profile` fit its target.

    Raises:
        click.UsageError: The options do not fit, or there is no such target.
    """
    if usage(lambda: spec.kind) != "script":
        if spec.arguments:
            raise click.UsageError(
                f"{spec.target} takes no arguments ({' '.join(spec.arguments)}). Only scripts do."
            )
        if options["synchronous"] and options["isolate"] is False:
            raise click.UsageError(
                "--synchronous needs a process of its own (--no-isolate forbids it). Leave one of "
                "the two out."
            )
        return
    for option, why in _NOT_FOR_SCRIPTS.items():
        if options[option] or (option == "compiled" and options[option] is not None):
            flag = _FLAGS.get(option, option)
            raise click.UsageError(f"--{flag} is not for a script ({spec.target}). {why}")


_FLAGS = {"as_json": "json", "compiled": "compile", "inputs": "set"}
_NOT_FOR_SCRIPTS = {
    "batch": "Set the batch size in the script.",
    "device": "Set the device in the script.",
    "train": "xsp finds training steps by itself.",
    "framework": "The script imports its frameworks.",
    "compiled": "Compile in the script.",
    "precision": "Set the precision in the script.",
    "inputs": "Write the script's own arguments after its name.",
    "isolate": "It runs once. Give path.py:function to measure a function in it.",
    "synchronous": "It runs once. Give path.py:function to measure a function in it.",
    "as_json": "Its standard output is its own. Use -o FILE, then xsp show --json FILE.",
}


def complete_target(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the sources of models, the files and the folders that begin with `incomplete`."""
    from click.shell_completion import CompletionItem  # noqa: PLC0415

    from xsp.measuring.target import SOURCES  # noqa: PLC0415

    schemes = [f"{source}:" for source in SOURCES if source.startswith(incomplete)]
    folder, begin = os.path.split(incomplete)
    files = (path for path in Path(folder).glob("*") if path.is_dir() or path.suffix == ".py")
    names = sorted(path.name for path in files if path.name.startswith(begin))
    matching = (os.path.join(folder, name) for name in names)
    return [CompletionItem(name) for name in (*schemes, *matching)]
