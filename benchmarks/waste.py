"""Providers that waste 100 us on every span on purpose, to see whether it is taken out.

Each takes the place of the PyTorch provider, records one kind of span by itself,
wastefully, and leaves the other kinds to the real one.
"""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import replace
from operator import itemgetter
from time import monotonic_ns
from typing import Any

from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from xsp.clock import Clock
from xsp.level import Kind
from xsp.provider.contract import Records, Request
from xsp.provider.row import SpanRows, concat_rows, span_rows
from xsp.testing import added_providers
from xsp_levels.framework.torch.provider import Torch

WASTE_NS = 100_000


def wasting(kind: str) -> AbstractContextManager[None]:
    """Put a wasteful provider in the place of PyTorch's: `layer` or `op`."""
    return added_providers({"layer": WastefulLayers, "op": WastefulOperators}[kind]())


def _waste() -> None:
    end = monotonic_ns() + WASTE_NS
    while monotonic_ns() < end:
        pass


class WastefulTorch(Torch):
    """Records spans of `own` in its own way, all others as PyTorch's provider does.

    The way is that of the subclass: `_arm_own`, `_disarm_own`, and `_rows` of what was found.
    """

    own = Kind.LAYER

    def start(self, clock: Clock, request: Request) -> None:
        """Arm the real provider for all other kinds, then the wasteful recording."""
        self._found: list[Any] = []
        self._arms = self.own in request.kinds
        super().start(clock, replace(request, kinds=request.kinds - {self.own}))
        if self._arms:
            self._arm_own()

    def stop(self) -> Records:
        """Disarm both."""
        if self._arms:
            self._disarm_own()
        kept = super().stop()
        return replace(kept, data=(kept.data, self._found))

    def spans(self, records: Records) -> SpanRows:
        """Return the rows of both."""
        theirs, found = records.data
        rows = [super().spans(replace(records, data=theirs))]
        if found:
            rows.append(self._rows(found))
        return concat_rows(rows)


class WastefulLayers(WastefulTorch):
    """Wastes its time before every module call, nested ones included."""

    own = Kind.LAYER

    def _arm_own(self) -> None:
        self._original = original = nn.Module.__call__
        put, now = self._found.append, monotonic_ns

        def wasteful(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            _waste()
            begin = now()
            result = original(module, *args, **kwargs)
            end = now()
            put((module, begin, end))
            return result

        nn.Module.__call__ = wasteful

    def _disarm_own(self) -> None:
        nn.Module.__call__ = self._original

    def _rows(self, found: list[Any]) -> SpanRows:
        found = sorted(found, key=itemgetter(1))  # from the order in which they ended
        root = found[0][0]
        paths = {id(module): path for path, module in root.named_modules()}
        calls: Counter[int] = Counter()
        ordinals = []
        for module, _, _ in found:
            if module is root:
                calls.clear()
            ordinals.append(calls[id(module)])
            calls[id(module)] += 1
        modules, starts, ends = zip(*found, strict=True)
        names = [paths[id(module)] for module in modules]
        return span_rows(
            {
                "kind": Kind.LAYER.value,
                "name": [n.rpartition(".")[2] or type(root).__name__ for n in names],
                "start_ns": list(starts),
                "end_ns": list(ends),
                "thread": threading.get_ident(),
                "attr.module_path": names,
                "attr.call_index": ordinals,
            }
        )


class WastefulOperators(WastefulTorch):
    """Wastes its time before every operator that reaches the dispatcher."""

    own = Kind.OP

    def _arm_own(self) -> None:
        self._mode = _Mode(self._found)
        self._mode.__enter__()

    def _disarm_own(self) -> None:
        self._mode.__exit__(None, None, None)

    def _rows(self, found: list[Any]) -> SpanRows:
        names, starts, ends = zip(*found, strict=True)
        return span_rows(
            {
                "kind": Kind.OP.value,
                "name": [str(name) for name in names],
                "start_ns": list(starts),
                "end_ns": list(ends),
                "thread": threading.get_ident(),
            }
        )


class _Mode(TorchDispatchMode):
    def __init__(self, found: list[Any]) -> None:
        super().__init__()
        self._put = found.append

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        _waste()
        begin = monotonic_ns()
        result = func(*args, **(kwargs or {}))
        end = monotonic_ns()
        self._put((func, begin, end))
        return result
