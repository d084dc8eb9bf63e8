"""A toy framework: a provider that watches, and a model that takes fake time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from xsp.level import Kind
from xsp.provider import CallFacts, ModelCall, ProgramLog
from xsp.testing import FakeClock, FakeProvider

LAYER_NS, OP_NS, GLUE_NS = 10_000, 3_000, 1_000


class Toy(FakeProvider):
    """Watches `ToyModel`s, whose layers and operators it also records."""

    def __init__(
        self, clock: FakeClock, *, cost_ns: int = 0, kinds: tuple[Kind, ...] = (Kind.LAYER, Kind.OP)
    ) -> None:
        super().__init__(clock, kinds, cost_ns=cost_ns, name="toy")
        self.clock = clock
        self.log: ProgramLog | None = None
        self.unsafe: str | None = None
        self.waits = False  # whether there is a device to wait for

    def watcher(self) -> ToyWatcher:
        return ToyWatcher(self)

    def model_call(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> ModelCall | None:
        if isinstance(function, ToyModel):
            return ToyCall(function.forward, args, kwargs, subject="ToyModel", toy=self)
        return None

    def hazard(self) -> str | None:
        return self.unsafe

    def synchronize(self) -> bool:
        return self.waits


class ToyWatcher:
    """Has the toy's models log their calls."""

    logs_layers = False

    def __init__(self, toy: Toy) -> None:
        self.toy = toy
        self.log: ProgramLog | None = None

    def begin(self, log: ProgramLog) -> None:
        self.log = self.toy.log = log

    def suspend(self) -> None:
        self.toy.log = None

    def resume(self) -> None:
        self.toy.log = self.log

    def end(self) -> None:
        self.toy.log = self.log = None


class Cell:
    """A number that a call can overwrite."""

    __slots__ = ("number",)

    def __init__(self, number: int = 0) -> None:
        self.number = number


@dataclass(slots=True)
class ToyCall(ModelCall):
    """A call of a `ToyModel`, as safe as its toy says."""

    toy: Toy | None = None

    def hazard(self) -> str | None:
        return self.toy.hazard() if self.toy is not None else None


class ToyModel:
    """`blocks` layers, each with two inner layers of one operator."""

    def __init__(self, toy: Toy, blocks: int = 3) -> None:
        self.toy, self.blocks, self.calls = toy, blocks, 0
        self.raises_at: int | None = None

    def __call__(self, x: int = 0) -> int:
        log = self.toy.log
        if log is None or log.local.inside is not None:
            return self.forward(x)
        number = log.call_number((id(self), x), lambda: CallFacts("ToyModel", owner=id(self)))
        if log.keeping:
            log.keep(number, ToyCall(self.forward, (x,), subject="ToyModel", toy=self.toy))
        made: int = log.make(number, self.forward, (x,), {})
        return made

    def forward(self, x: int = 0) -> int:
        self.calls += 1
        if self.calls == self.raises_at:
            raise ZeroDivisionError("the model's own error")
        clock, toy = self.toy.clock, self.toy
        with toy.span("ToyModel"):
            for number in range(self.blocks):
                with toy.span(f"block{number}"):
                    for inner in ("a", "b"):
                        with toy.span(inner):
                            clock.advance(LAYER_NS)
                            with toy.span("toy::op", Kind.OP):
                                clock.advance(OP_NS)
                    clock.advance(GLUE_NS)
        return x + 1

    @property
    def latency_ns(self) -> int:
        return self.blocks * (2 * (LAYER_NS + OP_NS) + GLUE_NS)
