"""Parts of a program besides its model in; marks, for whoever watches the program, out."""

from __future__ import annotations

from xsp_levels.framework.torch.compiler import hide_from_compiler
from xsp_levels.framework.torch.program.loop import NOTHING, Note, loop
from xsp_levels.framework.torch.program.move import Moves, has_device
from xsp_levels.framework.torch.program.step import BACKWARD, OptimizerSteps


class Marker:
    """Hands parts of a program to `mark` from now on, until `close`.

    Backward passes and optimizers' steps are parts of training steps mostly: the watcher, who
    knows better, tells of those that are none.

    Args:
        mark: Called with name, start, end (ns) and attributes of a part when the part has ended,
            on the same thread.
    """

    def __init__(self, mark: Note) -> None:
        self._mark = mark
        hide_from_compiler(__name__, OptimizerSteps.__module__)
        steps = OptimizerSteps(mark)
        self.begin_step, self.end_step = steps.begin, steps.end
        loop().watch(mark)
        self._moves = Moves(loop().note) if has_device() else None

    def backward(self, start_ns: int, end_ns: int) -> None:
        """Hand on a backward pass that is no part of a training step."""
        self._mark(BACKWARD, start_ns, end_ns, NOTHING)

    def close(self) -> None:
        """Take the hooks out."""
        if self._moves is not None:
            self._moves.close()
        loop().watch(None)
