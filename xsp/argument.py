"""Arguments of the command line: targets, the options around them, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


T = TypeVar("T")


def usage(work: Callable[[], T]) -> T:
    """Return what `work` returns; a wrong argument or variable is an error of usage."""
    try:
        return work()
    except ValueError as error:
        raise click.UsageError(str(error)) from error


class TargetCommand(click.Command):
    """A command whose options may stand after the target too, unless that is a script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the options before the target, and, unless that is a script, those after it."""
        ctx.allow_interspersed_args = False
        options, _, _ = self.make_parser(ctx).parse_args(list(args))
        # What follows a script is the script's own; what follows a name can only be ours.
        ctx.allow_interspersed_args = not _looks_like_script(options.get("target"))
        return super().parse_args(ctx, args)


def _looks_like_script(target: object) -> bool:
    return isinstance(target, str) and (target.endswith(".py") or ":" not in target)


def complete_target(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the sources of models, and the files and folders, that begin like this."""
    from click.shell_completion import CompletionItem  # noqa: PLC0415

    from xsp.target import SOURCES  # noqa: PLC0415

    schemes = [f"{source}:" for source in SOURCES if source.startswith(incomplete)]
    folder = Path(incomplete).parent
    files = [str(path) for path in folder.glob("*") if path.is_dir() or path.suffix == ".py"]
    matching = sorted(name for name in files if name.startswith(incomplete))
    return [CompletionItem(name) for name in (*schemes, *matching)]
