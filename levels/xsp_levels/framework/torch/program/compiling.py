"""Logs when PyTorch compiles as parts of a program, with the reason why it compiled again."""

from __future__ import annotations

import re
import sys
from types import FrameType
from typing import Any

from xsp_levels.framework.recompiling import REASON
from xsp_levels.framework.torch.compiler import Compilations

_WRAPPER = "wrap_inline.<locals>.inner"  # Dynamo's own function around the call of a module
_DEEPEST = 40  # frames from the callback to Dynamo's function that compiles: 6 in PyTorch 2.15
_OTHERS = {"LAZY_BACKWARD": "compile backward", "CUDAGRAPH_RECORDING": "record CUDA graph"}


class CompileParts:
    """Logs each compilation as a part, from `watch` to `unwatch`.

    Args:
        log: The log of the program.
    """

    def __init__(self, log: Any) -> None:
        self._log = log
        self._open: list[Any] = []  # PyTorch tells of one compilation at a time
        self._compilations = Compilations(self._told, whole=True)

    def watch(self) -> None:
        """Begin to log."""
        self._compilations.tell(True)

    def unwatch(self) -> None:
        """End that."""
        self._compilations.tell(False)

    def _told(self, begun: bool, about: Any) -> None:
        if begun:
            name, facts = _subject(about)
            self._open.append(self._log.begin_part(self._log.name(name, facts)))
        elif self._open:
            self._log.end_part(self._open.pop(), None)


def _subject(about: Any) -> tuple[str, dict[str, Any]]:
    """Return the name of a part, and why the code is compiled again, from Dynamo's own frame."""
    trigger = getattr(getattr(about, "callback_trigger", None), "name", "DYNAMO")
    if trigger != "DYNAMO":
        return _OTHERS.get(trigger, "compile"), {}
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_DEEPEST):
        if frame is None or frame.f_code.co_name == "_compile":
            break
        frame = frame.f_back
    else:
        frame = None  # these would be the variables of some other function
    known = {} if frame is None else frame.f_locals
    code, reason = known.get("code"), known.get("recompile_reason")
    name = getattr(code, "co_qualname", _WRAPPER)
    whose = "" if name == _WRAPPER else f" {name.rpartition('<locals>.')[2]}"
    if not reason:
        return f"compile{whose}", {}
    # `0/0: tensor 'x' size mismatch at index 0. expected 4, actual 6  # where the guard is from`
    words = re.sub(r"^\d+/\d+: ", "", str(reason)).partition("\n")[0].partition("  #")[0]
    return f"recompile{whose}", {REASON: words.strip()}
