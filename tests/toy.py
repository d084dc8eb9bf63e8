"""A toy framework: a provider that watches, and a model that takes fake time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any

from xsp.level import Kind
from xsp.provider import Evaluations, Kept, ModelCall, Role
from xsp.testing import FakeClock, FakeProvider

LAYER_NS, OP_NS, GLUE_NS = 10_000, 3_000, 1_000


class Toy(FakeProvider):
    """Watches `ToyModel`s, whose layers and operators it also records."""

    def __init__(
        self, clock: FakeClock, *, cost_ns: int = 0, kinds: tuple[Kind, ...] = (Kind.LAYER, Kind.OP)
    ) -> None:
        super().__init__(clock, kinds, cost_ns=cost_ns, name="toy")
        self.clock = clock
        self.evaluations: Evaluations | None = None
        self.unsafe: str | None = None
        self.kept: list[KeptCell] = []
        self.waits = False  # whether there is a device to wait for

    def watch(self, evaluations: Evaluations) -> None:
        self.evaluations = evaluations

    def unwatch(self) -> None:
        self.evaluations = None

    def model_call(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> ModelCall | None:
        if isinstance(function, ToyModel):
            return ToyCall(function.forward, args, kwargs, subject="ToyModel", toy=self)
        return None

    def hazard(self) -> str | None:
        return self.unsafe

    def role(self, cls: type) -> Role | None:
        return Role.VALUE if issubclass(cls, Cell) else None

    def keep(self, value: Any, room_bytes: int) -> Kept:
        self.kept.append(KeptCell(value))
        return self.kept[-1]

    def parts(self, model: Any) -> Iterable[tuple[str, Any]]:
        return ()

    def keep_random(self) -> Callable[[], None]:
        return lambda: None

    def synchronize(self) -> bool:
        return self.waits


class Cell:
    """A number that a call can overwrite: the toy framework's tensor."""

    __slots__ = ("fixed", "number")

    def __init__(self, number: int = 0, *, fixed: bool = False) -> None:
        self.number = number
        self.fixed = fixed  # what is written to it cannot be undone


class KeptCell:
    """What a cell was."""

    nbytes = 8
    trained = False

    def __init__(self, cell: Cell) -> None:
        self.cell, self.number = cell, cell.number
        self.times_put_back = 0

    def changed(self) -> bool:
        return self.cell.number != self.number

    def obstacle(self) -> str:
        return "which is fixed" if self.cell.fixed else ""

    def put_back(self) -> None:
        self.times_put_back += 1
        self.cell.number = self.number


@dataclass(slots=True)
class ToyCall(ModelCall):
    """A call of a `ToyModel`, as safe as its toy says."""

    toy: Toy | None = None

    def hazard(self) -> str | None:
        return self.toy.hazard() if self.toy is not None else None


def evaluate(evaluations: Evaluations, call: ModelCall) -> Any:
    """Hand a call over as a watcher does, and return its result."""
    toy = call.toy if isinstance(call, ToyCall) else None
    found_ns = call.found_ns or (toy.clock.now() if toy is not None else monotonic_ns())
    made = evaluations.again((call.subject, call.phase, call.inputs), call.work, found_ns)
    return evaluations.run(call) if made is None else made[0]


class ToyModel:
    """`blocks` layers, each with two inner layers of one operator."""

    def __init__(self, toy: Toy, blocks: int = 3) -> None:
        self.toy, self.blocks, self.calls = toy, blocks, 0
        self.raises_at: int | None = None

    def __call__(self, x: int = 0) -> int:
        evaluations = self.toy.evaluations
        if evaluations is None:
            return self.forward(x)
        self.toy.evaluations = None
        try:
            call = ToyCall(self.forward, (x,), subject="ToyModel", toy=self.toy)
            return evaluate(evaluations, call)
        finally:
            self.toy.evaluations = evaluations

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
