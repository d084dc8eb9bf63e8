"""A function of a recorder or a watcher in; steps of optimizers handed to it out."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from time import monotonic_ns
from typing import Any

from xsp_levels.framework.torch.compiler import hide_from_compiler
from xsp_levels.hook import Handler, Hook

_KERAS = "keras.src.optimizers.base_optimizer"


class _Made(threading.local):
    """The optimizer whose step a thread makes by `OptimizerEntryPoint.make`."""

    optimizer: Any = None


class OptimizerEntryPoint:
    """Hooks around the steps of all optimizers, while there is a recorder or a watcher.

    Those of Keras on PyTorch are no optimizers of PyTorch's, and are hooked besides.
    """

    def __init__(self, optimizer: Any, is_compiling: Callable[[], bool]) -> None:
        self._optimizer = optimizer
        self._is_compiling = is_compiling  # Dynamo traces hooks: these must do nothing then
        self._hooks: list[Any] = []
        self._keras: Hook | None = None
        self._begin: Callable[[Any], None] | None = None
        self._end: Callable[[Any], None] | None = None
        self._before: Callable[[Any, bool, int], None] | None = None
        self._after: Callable[[Any, int], None] | None = None
        self._made = _Made()

    def record(
        self, begin: Callable[[Any], None] | None, end: Callable[[Any], None] | None
    ) -> None:
        """Have `begin(optimizer)` called right before, `end(optimizer)` right after a step."""
        self._begin, self._end = begin, end
        self._apply()

    def watch(
        self,
        before: Callable[[Any, bool, int], None] | None,
        after: Callable[[Any, int], None] | None,
    ) -> None:
        """Have a watcher told of steps; None ends that.

        Args:
            before: Called with the optimizer, whether the step makes the forward pass itself (was
                given a closure), and the time in ns, before the step is recorded.
            after: Called with the optimizer, and the time in ns, when a step has been made and
                recorded.
        """
        self._before, self._after = before, after
        self._apply()

    def make(self, optimizer: Any, call: Callable[[], Any]) -> Any:
        """Make a call that makes a step of an optimizer, whether it runs its hooks or not."""
        self._before_step(optimizer, (), {})
        self._made.optimizer = optimizer
        try:
            result = call()
        finally:
            self._made.optimizer = None
        self._after_step(optimizer)
        return result

    def restore(self) -> None:
        """Take everything out."""
        self._begin = self._end = self._before = self._after = None
        self._apply()

    def _apply(self) -> None:
        wanted = any((self._begin, self._end, self._before, self._after))
        if wanted and not self._hooks:
            self._hooks = [
                self._optimizer.register_optimizer_step_pre_hook(self._before_step),
                self._optimizer.register_optimizer_step_post_hook(self._after_step),
            ]
            self._keras = self._keras or _keras_hook(self._before_step, self._after_step)
            if self._keras is not None:
                self._keras.place()
        elif not wanted:
            for hook in self._hooks:
                hook.remove()
            self._hooks = []
            if self._keras is not None:
                self._keras.take_out()

    def _before_step(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._is_compiling() or self._made.optimizer is optimizer:
            return
        found_ns, before, begin = monotonic_ns(), self._before, self._begin
        if before is not None:
            # Hooks are given the arguments of the method, and so perhaps the optimizer itself.
            closure = kwargs.get("closure", args[-1] if args else None)
            before(optimizer, callable(closure), found_ns)
            begin = self._begin  # armed by now, perhaps
        if begin is not None:
            begin(optimizer)

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        if self._is_compiling() or self._made.optimizer is optimizer:
            return
        end_ns, end, after = monotonic_ns(), self._end, self._after
        if end is not None:
            end(optimizer)
            end_ns = monotonic_ns()
        if after is not None:
            after(optimizer, end_ns)


@functools.cache
def optimizer_entry_point() -> OptimizerEntryPoint:
    """Return the entry points of all optimizers' steps; imports torch."""
    import torch  # noqa: PLC0415
    from torch.optim import optimizer  # noqa: PLC0415

    hide_from_compiler(__name__)
    return OptimizerEntryPoint(optimizer, torch.compiler.is_compiling)


def _keras_hook(
    before: Callable[[Any, tuple[Any, ...], dict[str, Any]], None],
    after: Callable[[Any], None],
) -> Hook | None:
    """Return a hook of steps of Keras's optimizers on PyTorch.

    None where the program has not imported Keras, or Keras runs elsewhere.

    Args:
        before: Called with the optimizer, and what PyTorch's own would be given, before a step.
        after: Called with the optimizer when the step has been made.
    """
    keras, module = sys.modules.get("keras"), sys.modules.get(_KERAS)
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
