"""Times functions that programs call between steps, by hooks in the functions.

What a training loop or a generation does besides calling its model: loading data, resetting
gradients, moving averages, a scheduler's step, a pipeline's tokenizer. `PARTS` lists the functions.
No library is imported for it. A library that the program imports later is looked through when one
of the functions is called, or a module is made a part of another: before a model of that library is
used.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from xsp.clock import SystemClock
from xsp_levels.framework.torch.compiler import hide_from_compiler, skip_code
from xsp_levels.framework.torch.module.entry_point import free_in_child
from xsp_levels.hook import Handler, Hook

NOTHING: Mapping[str, Any] = {}

# Told of each call when the call has ended, on its thread: name, start, end, and what is known of
# the call, such as the class of the `error` that left it.
Note = Callable[[str, int, int, Mapping[str, Any]], None]


def loader_facts(loader: Any) -> Mapping[str, int]:
    """Return how many workers a `torch.utils.data.DataLoader` is going to have."""
    return {"workers": loader.num_workers}


def queue_facts(batches: Any) -> Mapping[str, int]:
    """Return how many workers load data, and how many batches of theirs wait to be taken.

    Args:
        batches: An iterator of a `torch.utils.data.DataLoader`.
    """
    facts = {"workers": batches._num_workers}
    if facts["workers"]:
        with suppress(AttributeError, NotImplementedError):  # macOS does not tell a queue's size
            # Batches that arrived before their turn are kept beside the tasks under way.
            early = sum(len(task) == 2 for task in tuple(batches._task_info.values()))
            facts["batches_ready"] = early + batches._data_queue.qsize()
    return facts


@dataclass(frozen=True, slots=True)
class Part:
    """Functions that do one part of a program's work.

    Attributes:
        name: Name of the spans.
        module: Name of the module that has the functions.
        owner: Name of the class in it; empty for a function of the module itself.
        method: Name of the function.
        overriding: Whether functions of subclasses with that name are meant, too.
        facts: Returns attributes, given the first argument before the call.
        end: Name of the span of a call that raises StopIteration, which is no error.
    """

    name: str
    module: str
    owner: str
    method: str
    overriding: bool = True
    facts: Callable[[Any], Mapping[str, int]] | None = None
    end: str = ""

    def functions(self) -> Iterator[FunctionType]:
        """Yield the functions, as far as their modules are imported."""
        module = sys.modules.get(self.module)
        owner = getattr(module, self.owner, None) if self.owner else module
        for place in _with_subclasses(owner) if self.overriding and self.owner else (owner,):
            found: Any = vars(place).get(self.method) if place is not None else None
            function = inspect.unwrap(found)
            if isinstance(function, FunctionType):
                yield function


_DATA, _EMA = "torch.utils.data.dataloader", "timm.utils.model_ema"
_CLIP, _REGION = "torch.nn.utils.clip_grad", "transformers.pipelines.base"

PARTS = (
    # Subclasses may override this by generators, which begin nothing when they are called.
    Part("start of data loading", _DATA, "DataLoader", "__iter__", False, loader_facts),
    Part(
        "data loading",
        _DATA,
        "_BaseDataLoaderIter",
        "__next__",
        facts=queue_facts,
        end="end of data loading",
    ),
    Part("zero_grad", "torch.optim.optimizer", "Optimizer", "zero_grad"),
    Part("zero_grad", "torch.nn.modules.module", "Module", "zero_grad"),
    Part("clip gradients", _CLIP, "", "clip_grad_norm_"),
    Part("clip gradients", _CLIP, "", "clip_grad_value_"),
    Part("scheduler step", "torch.optim.lr_scheduler", "LRScheduler", "step"),
    Part("moving average", "torch.optim.swa_utils", "AveragedModel", "update_parameters"),
    *(Part("moving average", _EMA, f"ModelEma{version}", "update") for version in ("", "V2", "V3")),
    Part("generate", "transformers.generation.utils", "GenerationMixin", "generate"),
    Part("pipeline", _REGION, "Pipeline", "__call__", False),
    Part("preprocess", _REGION, "Pipeline", "preprocess"),
    Part("forward", _REGION, "Pipeline", "forward"),
    Part("postprocess", _REGION, "Pipeline", "postprocess"),
)


class Loop:
    """The functions of `PARTS`, hooked while there is a recorder or a watcher, on any thread."""

    def __init__(self, modules: Any, is_compiling: Callable[[], bool]) -> None:
        self._modules = modules  # torch.nn.modules.module
        self._is_compiling = is_compiling  # Dynamo traces hooks: these must do nothing then
        self._record: Note | None = None
        self._log: Any = None  # of a program
        self._now = SystemClock.now
        # Kept when they are taken out: Dynamo compiles anew for code that it has not seen.
        self._hooks: dict[FunctionType, Hook] = {}
        self._imported = 0  # how many modules were imported when functions were last looked for
        self._registration: Any = None
        self._lock = threading.RLock()  # a signal's handler may call a model, too

    def record(self, note: Note | None, now: Callable[[], int] = SystemClock.now) -> None:
        """Call `note` after each call inside a step; None ends that."""
        self._record, self._now = note, now
        self._apply()

    def watch(self, log: Any) -> None:
        """Log each call in a program's log; None ends that."""
        self._log, self._imported = log, 0  # classes may be new where no module is
        self._apply()

    def free_child(self) -> None:
        """Replace the lock: the thread that held the old lock does not exist in a forked child."""
        self._lock = threading.RLock()

    def _apply(self) -> None:
        with self._lock:
            wanted = self._record is not None or self._log is not None
            if wanted:
                self._look()
            for hook in tuple(self._hooks.values()):
                hook.place() if wanted else hook.take_out()
            if wanted and self._registration is None:
                register = self._modules.register_module_module_registration_hook
                self._registration = register(self._look_again)
            elif not wanted and self._registration is not None:
                self._registration.remove()
                self._registration = None

    def _look_again(self, *_: Any) -> None:
        if len(sys.modules) != self._imported:
            self._apply()

    def _look(self) -> None:
        """Find functions that were imported since the last look."""
        if len(sys.modules) == self._imported:
            return
        self._imported = len(sys.modules)
        for part in PARTS:
            for function in part.functions():
                if function not in self._hooks:
                    iterates = inspect.isgeneratorfunction(function)
                    around = functools.partial(self._each if iterates else self._all, part)
                    hook = self._hooks[function] = Hook(function, around)
                    skip_code(hook.code)

    def _all(self, part: Part, call: Callable[..., Any]) -> Handler:
        """Return a handler that makes a call and tells how long it took."""
        is_compiling, name, facts, modules = self._is_compiling, part.name, part.facts, sys.modules

        def handler(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if is_compiling():
                return call(*args, **kwargs)
            if len(modules) != self._imported:
                self._apply()
            known = facts(args[0]) if facts is not None else NOTHING
            record, log, now = self._record, self._log, self._now
            if record is None and log is None:
                return call(*args, **kwargs)
            mine = log.begin_part(log.name(name, known)) if record is None else None
            start = now() if record is not None else 0
            ended, error = name, None
            try:
                return call(*args, **kwargs)
            except StopIteration:
                ended = part.end or name
                raise
            except BaseException as raised:
                error = raised
                raise
            finally:
                if record is not None:
                    failed = {} if error is None else {"error": type(error).__name__}
                    record(ended, start, now(), {**known, **failed})
                elif ended == name:
                    log.end_part(mine, error)
                else:
                    log.end_part(mine, None, log.name(ended))
                error = None  # which holds this frame

        return handler

    def _each(self, part: Part, call: Callable[..., Any]) -> Handler:
        """Return a handler that makes a generator and tells how long each of its items took."""
        one = self._all(part, next)

        def handler(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            items = call(*args, **kwargs)
            try:
                while True:
                    try:
                        item = one((items,), {})
                    except StopIteration as stop:
                        return stop.value
                    yield item
            finally:
                items.close()

        return handler


def _with_subclasses(owner: Any) -> Iterator[Any]:
    seen, found = set(), [owner] if owner is not None else []
    while found:
        place = found.pop()
        if place not in seen:
            seen.add(place)
            yield place
            found += type.__subclasses__(place)


@functools.cache
def loop() -> Loop:
    """Return the functions of `PARTS`; imports torch."""
    import torch  # noqa: PLC0415
    import torch.utils.data  # noqa: PLC0415
    from torch.nn.modules import module  # noqa: PLC0415

    hide_from_compiler(__name__)
    made = Loop(module, torch.compiler.is_compiling)
    free_in_child(made.free_child)
    return made
