"""Parts of a program besides its model in; marks, for whoever watches the program, out."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from xsp_levels.framework.torch.module.entry_point import OptimizerEntryPoint, hide_from_compiler
from xsp_levels.framework.torch.program.loop import loop
from xsp_levels.framework.torch.program.move import Moves, has_device
from xsp_levels.framework.torch.program.step import OptimizerSteps

Mark = Callable[[str, int, int, Mapping[str, Any]], None]


class Marker:
    """Hands every part of a program to `mark` from now on, until `close`.

    Args:
        mark: Called with name, start, end (ns) and attributes of a part when the part has ended,
            on the same thread.
    """

    def __init__(self, mark: Mark) -> None:
        self._mark = mark
        hide_from_compiler(__name__, OptimizerSteps.__module__)
        steps = OptimizerSteps(self._note)
        _optimizers().record(steps.begin, steps.end)
        loop().watch(self._note)
        self._moves = Moves(loop().note) if has_device() else None

    def close(self) -> None:
        """Take the hooks out."""
        if self._moves is not None:
            self._moves.close()
        _optimizers().record(None, None)
        loop().watch(None)

    def _note(
        self, name: str, start_ns: int, end_ns: int, facts: Mapping[str, int], error: str | None
    ) -> None:
        self._mark(name, start_ns, end_ns, facts if error is None else {**facts, "error": error})


@functools.cache
def _optimizers() -> OptimizerEntryPoint:
    """Return an entry point besides the one that recorders have: both see every step."""
    import torch  # noqa: PLC0415
    from torch.optim import optimizer  # noqa: PLC0415

    return OptimizerEntryPoint(optimizer, torch.compiler.is_compiling)
