"""Tensors that programs move to another device in; start and end of each move out.

The methods are PyTorch's own, in C, so their names in `torch.Tensor` are given wrappers, and only
while a program is watched on a machine with a GPU. What it noted on one was not looked at yet.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

from xsp.clock import SystemClock
from xsp_levels.framework.torch.program.loop import NOTHING, Note

MOVE = "move to device"
_METHODS = ("to", "cuda")


class Moves:
    """The methods of tensors that may move a tensor, wrapped until `close`.

    A move's time is the host's: a copy that the host does not wait for goes on after it.

    Args:
        note: Told of each move that has ended; a call that moves nothing is none.
    """

    def __init__(self, note: Note) -> None:
        import torch  # noqa: PLC0415

        self._note = note
        self._tensor = torch.Tensor
        self._plain = (torch.Tensor, torch.nn.Parameter)
        self._wrappers = {name: self._wrapped(getattr(torch.Tensor, name)) for name in _METHODS}
        for name, wrapper in self._wrappers.items():
            setattr(torch.Tensor, name, wrapper)

    def close(self) -> None:
        """Take the wrappers out, unless another tool has put something else in their place."""
        for name, wrapper in self._wrappers.items():
            if vars(self._tensor).get(name) is wrapper:
                delattr(self._tensor, name)

    def _wrapped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        plain, note, now = self._plain, self._note, SystemClock.now

        @functools.wraps(original)
        def move(self: Any, *args: Any, **kwargs: Any) -> Any:
            if type(self) not in plain:  # such as the tensors that compilers trace with
                return original(self, *args, **kwargs)
            start = now()
            result = original(self, *args, **kwargs)
            end = now()
            if result is not self and result.device != self.device:
                note(MOVE, start, end, NOTHING)
            return result

        return move


def has_device() -> bool:
    """Return whether there is a GPU to move tensors to, without beginning to use one."""
    import torch  # noqa: PLC0415

    with warnings.catch_warnings():
        # Where another framework has looked for a GPU before, and there is none, PyTorch warns.
        warnings.simplefilter("ignore")
        return bool(torch.cuda.device_count())
