"""Random programs: a plan of what a program is made of, and a script that is written by it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import hypothesis.strategies as st

from simulated_program.script import Do, Script, What
from xsp.provider import CallFacts, Inputs, NamedLayer

FIRST_ID = 0x7F00_0000_0000  # of a module
ERROR = "ValueError"


@dataclass(frozen=True, slots=True)
class Plan:
    """Composition of a random program.

    Attributes:
        seed: Of everything that is left to chance.
        units: How many things the program does one after the other.
        models: How many models it has; with `shapes` shapes of input each.
        shapes: How many unlike shapes.
        depth: How deep layers nest.
        scale_ns: How long a layer works, by and large.
        styles: Names of the kinds of training (`STYLES`); none: the program trains nothing.
        inference: Whether it also calls models by themselves.
        regions: Whether regions are around things, nested; `crossing`: also such as cross things.
        crossing: Whether some regions begin in one thing and end in another.
        marked: Whether the user marks steps.
        parts: Whether data are loaded between.
        threads: How many more threads call models.
        tasks: How many tasks of an event loop interleave in one unit.
        raising: Whether calls raise at times.
        unknown: Whether there are modules that nobody has named, and such as die.
    """

    seed: int = 0
    units: int = 6
    models: int = 2
    shapes: int = 1
    depth: int = 2
    scale_ns: int = 20_000
    styles: tuple[str, ...] = ()
    inference: bool = True
    regions: bool = False
    crossing: bool = False
    marked: bool = False
    parts: bool = False
    threads: int = 0
    tasks: int = 0
    raising: bool = False
    unknown: bool = False

    @property
    def concurrent(self) -> bool:
        """Whether threads or tasks run at the same time, or take turns."""
        return bool(self.threads or self.tasks)


@st.composite
def plans(draw: st.DrawFn, *, concurrent: bool = True, training: bool = True) -> Plan:
    """Draw plans of programs."""
    styles = draw(st.lists(st.sampled_from(sorted(STYLES)), max_size=2)) if training else []
    return Plan(
        seed=draw(st.integers(0, 2**16)),
        units=draw(st.integers(1, 14)),
        models=draw(st.integers(1, 3)),
        shapes=draw(st.integers(1, 3)),
        depth=draw(st.integers(0, 3)),
        scale_ns=draw(st.sampled_from([2_000, 20_000, 400_000])),
        styles=tuple(styles),
        inference=draw(st.booleans()) or not styles,
        regions=draw(st.booleans()),
        crossing=draw(st.booleans()),
        marked=draw(st.integers(0, 7)) == 0,
        parts=draw(st.booleans()),
        threads=draw(st.integers(0, 3)) if concurrent else 0,
        tasks=draw(st.sampled_from([0, 0, 2, 4])) if concurrent else 0,
        raising=draw(st.booleans()),
        unknown=draw(st.booleans()),
    )


@dataclass(frozen=True, slots=True)
class Module:
    """A module of a model: it works, calls operators, and its children, some of them repeatedly."""

    ident: int
    own_ns: int
    operators: tuple[tuple[int, str, int], ...]
    children: tuple[Module, ...]
    most: int = 1  # how often its parent calls it at most


@dataclass(frozen=True, slots=True)
class Model:
    """A model, and the shapes of its inputs."""

    number: int
    name: str
    module: Module
    shapes: tuple[Inputs, ...]


def write(plan: Plan) -> Script:
    """Return a program by a plan."""
    return _Writer(plan).write()


@dataclass(slots=True)
class Lines:
    """Actions of one thread, as they are being written.

    Attributes:
        does: What it does.
        open: Numbers of the regions that are open, the innermost last.
    """

    does: list[Do] = field(default_factory=list)
    open: list[int] = field(default_factory=list)

    def add(self, what: What, number: int = 0, ns: int = 0, name: str = "") -> None:
        """Do one thing more."""
        self.does.append(Do(what, number, ns, name))


class _Writer:
    def __init__(self, plan: Plan) -> None:
        self.plan, self.chance = plan, random.Random(plan.seed)
        self.script = Script()
        self.ids = 0
        self.lines = Lines()
        self.marked = 0  # steps that the user marked so far
        self.models = [self._model(number + 1) for number in range(plan.models)]
        self.optimizers = [
            self.script.name(name, {"optimizer": n}) for n, name in enumerate(("Adam", "SGD"), 1)
        ]
        self.error = self.script.name(ERROR)

    def write(self) -> Script:
        plan, chance = self.plan, self.chance
        for number in range(plan.threads):
            worker = self.lines = Lines()
            self.script.threads.append(worker.does)
            # A model of its own: rows are as if they were on the thread of their first call.
            model = self._model(plan.models + number + 1)
            for _ in range(chance.randint(1, max(plan.units, 1))):
                self.run(30_000)
                self.call(model, raises=chance.random() < 0.1)
            self.run(1000 * (number + 1))
        main = self.lines = Lines(self.script.threads[0])
        self.run(50_000)
        for number in range(plan.threads):
            main.add(What.START, number + 1)
        crossing: list[int] = []
        for _ in range(plan.units):
            self._crossing(crossing)
            self._unit()
            self.run(chance.choice([1_000, 30_000, 3_000_000]))
        while crossing:
            self.close(crossing.pop(0))
        if plan.threads:
            main.add(What.JOIN)
        self.run(10_000)
        return self.script

    def _unit(self) -> None:
        plan, chance = self.plan, self.chance
        if plan.parts and chance.random() < 0.5:
            self.part()
        marked = plan.marked and (not self.marked or chance.random() < 0.8)
        self.marked += marked
        if marked:
            self.open("marked step", marked=True)
        around = plan.regions and not marked and chance.random() < 0.5
        if around:
            self.open(f"region {chance.randint(0, 2)}")
        if plan.tasks and chance.random() < 0.5:
            self._tasks()
        elif plan.styles and (not plan.inference or chance.random() < 0.6):
            STYLES[chance.choice(plan.styles)](self)
        else:
            for _ in range(chance.randint(1, 4)):
                self.any_call()
                self.run(chance.choice([500, 20_000]))
        if around or marked:
            self.close(self.lines.open[-1])

    def _crossing(self, crossing: list[int]) -> None:
        """Open or close regions that do not end where what is around them ends."""
        if not self.plan.crossing:
            return
        if crossing and self.chance.random() < 0.6:
            self.close(crossing.pop(self.chance.randrange(len(crossing))))
        if self.chance.random() < 0.4:
            self.open(f"crossing {len(self.script.regions)}")
            crossing.append(self.lines.open[-1])

    def _tasks(self) -> None:
        """Let requests take turns, each a region of its own context."""
        around = self.lines.open[-1] if self.lines.open else 0
        requests = [
            self.script.region(f"request {n % 2}", around, stated=True)
            for n in range(self.plan.tasks)
        ]
        left = {number: self.chance.randint(1, 3) for number in requests}
        for number in requests:
            self.lines.add(What.CONTEXT, around)
            self.lines.add(What.OPEN, number)
            self.run(2_000)
        while left:
            number = self.chance.choice(sorted(left))
            self.lines.add(What.CONTEXT, number)
            self.any_call()
            left[number] -= 1
            if not left[number]:
                del left[number]
                self.lines.add(What.CLOSE, number)
        self.lines.add(What.CONTEXT, around)

    def _model(self, number: int) -> Model:
        chance = self.chance
        named: dict[int, NamedLayer] = {}
        children = tuple(
            self._module(f"m{number}l{n}", 1, named) for n in range(chance.randint(1, 4))
        )
        module = Module(0, self.plan.scale_ns, (), children)
        self.script.modules[number] = named
        shapes: tuple[Inputs, ...] = tuple(
            (((8 * (n + 1), number), "float32"),) for n in range(self.plan.shapes)
        )
        return Model(number, f"M{number}", module, shapes)

    def _module(self, path: str, depth: int, named: dict[int, NamedLayer]) -> Module:
        chance = self.chance
        self.ids += 1
        ident = FIRST_ID + 16 * self.ids
        name = path.rpartition(".")[2]
        if not self.plan.unknown or chance.random() < 0.8:
            named[ident] = NamedLayer(path, f"Layer{depth}")
        children: tuple[Module, ...] = ()
        if depth < self.plan.depth:
            children = tuple(
                self._module(f"{path}.{name}_{n}", depth + 1, named)
                for n in range(chance.randint(0, 3))
            )
        operators = tuple(
            (chance.randint(0, 4), f"op {name} {n}", self._near(self.plan.scale_ns // 3))
            for n in range(chance.randint(0, 2))
        )
        most = chance.choice([1, 1, 1, 3])
        return Module(ident, self._near(self.plan.scale_ns), operators, children, most)

    def _near(self, ns: int) -> int:
        return max(round(ns * self.chance.uniform(0.3, 1.7)), 50)

    def run(self, ns: int) -> None:
        """Work for about so long."""
        self.lines.add(What.RUN, ns=self._near(ns))

    def open(self, name: str, *, marked: bool = False) -> None:
        """Open a region within those that are open."""
        around = self.lines.open[-1] if self.lines.open else 0
        number = self.script.region(name, around, marked=marked)
        self.lines.open.append(number)
        self.lines.add(What.OPEN, number)

    def close(self, number: int) -> None:
        """Close a region."""
        self.lines.open.remove(number)
        self.lines.add(What.CLOSE, number)

    def part(self) -> None:
        """Load data."""
        self.lines.add(What.PART, self.script.name("data loading"))
        self.run(60_000)
        self.lines.add(What.END)

    def any_call(self) -> None:
        """Call some model, for inference."""
        if self.plan.unknown and self.chance.random() < 0.1:
            ids = [each for known in self.script.modules.values() for each in known]
            if ids:
                self.lines.add(What.DIE, self.chance.choice(ids))
        self.call(self.chance.choice(self.models), raises=self.chance.random() < 0.15)

    def call(
        self, model: Model, *, gradients: bool = False, training: bool = False, raises: bool = False
    ) -> None:
        """Call a model."""
        shape = self.chance.choice(model.shapes)
        facts = CallFacts(
            model.name, model.number, model.name, gradients=gradients, training=training,
            inputs=shape,
        )  # fmt: skip
        self.lines.add(What.CALL, self.script.call(facts))
        self.run(model.module.own_ns * shape[0][0][0] // 8)
        raises = raises and self.plan.raising
        fails = self.chance.randrange(len(model.module.children)) if raises else -1
        for number, child in enumerate(model.module.children):
            self.layers(child)
            if number == fails:
                self.lines.add(What.LAYER, child.ident)
                self.run(child.own_ns)
                self.lines.add(What.RAISE, self.error)
                self.lines.add(What.RAISE, self.error)
                return
        self.lines.add(What.END)

    def layers(self, module: Module) -> None:
        """Call a module as often as it is called, and what lies in it."""
        for _ in range(self.chance.randint(1, module.most)):
            self.lines.add(What.LAYER, module.ident)
            self.run(module.own_ns)
            for number, name, ns in module.operators:
                self.lines.add(What.OPERATOR, number, ns, name)
            for child in module.children:
                self.layers(child)
            self.lines.add(What.END)

    def loss(self) -> None:
        """Call a loss, which is too little for a model."""
        self.lines.add(What.CALL, self.script.call(CallFacts("Loss", 99, "Loss", passed_over=True)))
        self.run(2_000)
        self.lines.add(What.END)

    def backward(self, model: Model | None = None, *, returns: bool = False) -> None:
        """Run a backward pass; a model: that recomputes one of its layers in it."""
        self.lines.add(What.BACKWARD, int(returns))
        self.run(3 * self.plan.scale_ns)
        if model is not None:
            self.layers(model.module.children[0])
        self.lines.add(What.END)

    def optimizer(self, which: int = 0, closure: Callable[[], None] | None = None) -> None:
        """Let an optimizer step."""
        self.lines.add(What.OPTIMIZER, self.optimizers[which])
        self.run(self.plan.scale_ns)
        if closure is not None:
            closure()
        self.lines.add(What.END)

    def begin_step(self, model: Model) -> None:
        """Note that a training step of a model should begin here."""
        if not self.plan.marked:
            self.lines.add(What.STEP, name=model.name)

    def end_step(self) -> None:
        """Note that it should end here."""
        if not self.plan.marked:
            self.lines.add(What.STEPPED)

    def trained(self, model: Model) -> None:
        """Call a model in training, and its loss at times."""
        self.call(model, gradients=True, training=True)
        if self.chance.random() < 0.5:
            self.loss()


def _plain(writer: _Writer) -> None:
    model = writer.models[0]
    spanned = writer.plan.regions and writer.chance.random() < 0.5
    writer.begin_step(model)
    if spanned:
        writer.open("forward")
    writer.trained(model)
    if spanned:
        writer.close(writer.lines.open[-1])
    writer.backward(model if writer.chance.random() < 0.3 else None)
    writer.optimizer()
    writer.end_step()


def _accumulated(writer: _Writer) -> None:
    writer.begin_step(writer.models[0])
    for _ in range(3):
        writer.trained(writer.models[0])
        writer.backward()
    writer.optimizer()
    writer.end_step()


def _two_optimizers(writer: _Writer) -> None:
    writer.begin_step(writer.models[0])
    writer.trained(writer.models[0])
    writer.backward()
    writer.optimizer(0)
    writer.optimizer(1)
    writer.end_step()


def _two_passes(writer: _Writer) -> None:
    writer.begin_step(writer.models[0])
    writer.trained(writer.models[0])
    writer.backward(returns=True)
    writer.backward()
    writer.optimizer()
    writer.end_step()


def _two_models(writer: _Writer) -> None:
    writer.begin_step(writer.models[0])
    writer.trained(writer.models[0])
    writer.trained(writer.models[-1])
    writer.backward()
    writer.optimizer()
    writer.end_step()


def _closure(writer: _Writer) -> None:
    def evaluate() -> None:
        for _ in range(2):
            writer.trained(writer.models[0])
            writer.backward()

    writer.call(writer.models[0])  # a step right after another optimizer's would be part of that
    writer.begin_step(writer.models[0])
    writer.optimizer(1, evaluate)
    writer.end_step()


def _skipped(writer: _Writer) -> None:
    writer.begin_step(writer.models[0])
    writer.trained(writer.models[0])
    writer.backward()
    writer.run(5_000)  # the scaler leaves this step out
    writer.trained(writer.models[0])
    writer.backward()
    writer.optimizer()
    writer.end_step()


def _gan(writer: _Writer) -> None:
    generator, discriminator = writer.models[0], writer.models[-1]
    writer.begin_step(generator)
    writer.trained(generator)
    writer.trained(discriminator)
    writer.trained(discriminator)
    writer.backward()
    writer.optimizer(0)
    writer.end_step()
    writer.run(2_000)
    writer.begin_step(generator)
    writer.trained(generator)
    writer.trained(discriminator)
    writer.backward()
    writer.optimizer(1)
    writer.end_step()


def _teacher(writer: _Writer) -> None:
    writer.call(writer.models[-1])
    writer.run(1_000)
    _plain(writer)


def _fine_tuned(writer: _Writer) -> None:
    writer.begin_step(writer.models[0])
    writer.call(writer.models[0], gradients=True)
    writer.backward()
    writer.optimizer()
    writer.end_step()


def _validated(writer: _Writer) -> None:
    _plain(writer)
    with_gradients = writer.chance.random() < 0.5
    for _ in range(writer.chance.randint(1, 5)):
        writer.call(writer.models[0], gradients=with_gradients)
    _plain(writer)


# How programs train.
STYLES: dict[str, Callable[[_Writer], None]] = {
    "plain": _plain,
    "accumulated": _accumulated,
    "two optimizers": _two_optimizers,
    "two passes": _two_passes,
    "two models": _two_models,
    "closure": _closure,
    "skipped": _skipped,
    "gan": _gan,
    "teacher": _teacher,
    "fine-tuned": _fine_tuned,
    "validated": _validated,
}


def of_style(style: str, steps: int, plan: Plan | None = None) -> Script:
    """Return a program that trains in one way, so many times."""
    return write(replace(plan or Plan(), styles=(style,), inference=False, units=steps))
