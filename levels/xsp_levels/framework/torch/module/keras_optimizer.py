"""What is to be told of optimizers' steps in; a hook for Keras's optimizers on PyTorch out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from xsp_levels.hook import Handler, Hook

_MODULE = "keras.src.optimizers.base_optimizer"


def optimizer_hook(
    before: Callable[[Any, tuple[Any, ...], dict[str, Any]], None],
    after: Callable[[Any], None],
) -> Hook | None:
    """Return a hook; None where the program has not imported Keras, or Keras runs elsewhere.

    Args:
        before: Called with the optimizer, and what PyTorch's own would be given, before a step.
        after: Called with the optimizer when the step has been made.
    """
    keras, module = sys.modules.get("keras"), sys.modules.get(_MODULE)
    if keras is None or module is None or keras.backend.backend() != "torch":
        return None

    def handler(call: Callable[..., Any]) -> Handler:
        def step(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            before(args[0], (), {})
            result = call(*args, **kwargs)
            after(args[0])
            return result

        return step

    return Hook(module.BaseOptimizer.apply, handler)
