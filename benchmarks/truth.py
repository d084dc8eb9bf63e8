"""Latencies of layers: the ground truth, and what torch.profiler says.

Ground truth is two clock reads around the call of a module while nothing else is
recorded. A stand-in takes the module's place in its parent and makes the call between
the two reads; no hook, no profiler, no wrapper elsewhere. The module itself stays as it
is: one whose class or code was exchanged is slower by 0.2 us, because the interpreter's
inline caches are shared with its siblings and know another class.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic_ns
from typing import Any

from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function
from turns import settle, statistic

from xsp_levels.native.stderr_filter import vendor_silenced

# A layer: the module's path, and which of its calls in one step.
Layer = tuple[str, int]
Samples = dict[Layer, list[float]]
MARK = "layer|"


def summarize(samples: Samples) -> dict[Layer, float]:
    return {layer: statistic(values) for layer, values in samples.items()}


def groups(model: nn.Module, at_once: int) -> list[list[str]]:
    """Return all modules in groups that are timed in one step.

    No module of a group contains another, so none sees the clock reads of another
    one; a group has at most `at_once` modules.
    """
    depths: dict[int, list[str]] = defaultdict(list)
    for path, _ in model.named_modules():
        depths[path.count(".") + 1 if path else 0].append(path)
    return [
        paths[at :: -(-len(paths) // at_once)]
        for paths in depths.values()
        for at in range(-(-len(paths) // at_once))
    ]


def time_layers(model: nn.Module, inputs: Any, paths: Sequence[str], evaluations: int) -> Samples:
    """Return the true latencies of these modules in ns, one per call and step."""
    samples: Samples = defaultdict(list)
    with _timed(model, paths) as (root, readings):
        settle(lambda: root(inputs))
        for _ in range(evaluations):
            for values in readings.values():
                values.clear()
            root(inputs)
            for path, values in readings.items():
                for call, latency in enumerate(values):
                    samples[path, call].append(float(latency))
    return samples


class _Clocked:
    """Stands in for a module in its parent, and times its calls from there."""

    def __init__(self, module: nn.Module, put: Callable[[int], None]) -> None:
        self._module = module
        self._put = put

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module, now = self._module, monotonic_ns
        begin = now()
        result = module(*args, **kwargs)
        end = now()
        self._put(end - begin)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def __iter__(self) -> Iterator[Any]:  # of a ModuleList, which is never called
        return iter(self._module)

    def __getitem__(self, key: Any) -> Any:
        return self._module[key]

    def __len__(self) -> int:
        return len(self._module)


@contextmanager
def _timed(
    model: nn.Module, paths: Iterable[str]
) -> Iterator[tuple[Callable[..., Any], dict[str, list[int]]]]:
    """Yield what to call as the model, and where each module's latencies appear."""
    readings: dict[str, list[int]] = {path: [] for path in paths}
    clocked = {
        path: _Clocked(model.get_submodule(path), values.append)
        for path, values in readings.items()
    }
    root = clocked.pop("", model)
    try:
        for path, stand_in in clocked.items():
            _put(model, path, stand_in)
        yield root, readings
    finally:
        for path, stand_in in clocked.items():
            _put(model, path, stand_in._module)


def _put(model: nn.Module, path: str, module: Any) -> None:
    above, _, name = path.rpartition(".")
    model.get_submodule(above)._modules[name] = module


def profile_layers(model: nn.Module, evaluate: Callable[[], Any], evaluations: int) -> Samples:
    """Return the latencies of all modules as torch.profiler gives them, in ns.

    Every module is annotated with `record_function`, operators and shapes are on:
    what somebody does who wants both from one run.
    """
    with _annotated(model):
        settle(evaluate)
        with (
            vendor_silenced(),
            profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler,
        ):
            for _ in range(evaluations):
                evaluate()
    events = [
        (event.start_ns(), event.name().removeprefix(MARK), event.duration_ns())
        for event in profiler.profiler.kineto_results.events()
        if event.name().startswith(MARK)
    ]
    return _by_layer(sorted(events), evaluations)


def _by_layer(events: Iterable[tuple[int, str, int]], evaluations: int) -> Samples:
    durations: dict[str, list[int]] = defaultdict(list)
    for _, path, duration in events:
        durations[path].append(duration)
    samples: Samples = defaultdict(list)
    for path, values in durations.items():
        calls = len(values) // evaluations
        for at, value in enumerate(values):
            samples[path, at % calls].append(float(value))
    return samples


@contextmanager
def _annotated(model: nn.Module) -> Iterator[None]:
    handles = []
    for path, module in model.named_modules():
        opened: list[record_function] = []

        def enter(*_: Any, name: str = MARK + path, opened: list[Any] = opened) -> None:
            opened.append(record_function(name))
            opened[-1].__enter__()

        def leave(*_: Any, opened: list[Any] = opened) -> None:
            opened.pop().__exit__(None, None, None)

        handles += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
