"""Groups of like evaluations: calls of models in, the group of each call out.

Evaluations are alike that call one model, as often, in one phase (training step, prefill, …), with
inputs of the same shapes and data types. Where an input has a new shape in every second call or
oftener (sentences of any length), the dimensions that are new do not tell groups apart; nor does
how often a training step calls the model, where that is ever another number (games of any length).

    ResNet  inference      32×3×224×224    group 0
    ResNet  training step  32×3×224×224    group 1
    ResNet  inference       1×3×224×224    group 2
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from xsp.provider import NO_BACKWARD, Inputs, ModelCall

TRAINING_STEP = "training step"
MOST = 256  # groups that are kept apart; further ones are one group per model and phase
MOST_RESTS = 32  # groups of such further ones; what is beyond is one group together
_FREE_AFTER = 12  # unlike shapes of an input after which the input is asked whether they recur
_FREE_CALLS_AFTER = 6  # steps of fixed numbers of calls have two: micro-batches, and the last few
_FEW_SHAPES = 3  # of one rank; fewer do not tell which dimensions vary
_REST = "further shapes"
_REST_OF_ALL = ("further models", "", _REST)

_Family = tuple[str, str, str]
_Key = tuple[_Family, tuple[object, ...]]
Input = tuple[tuple[int, ...], str]  # shape and data type
Size = tuple[int, Inputs]  # how often the model is called, and what is put into the first call


def elements(inputs: Inputs) -> int:
    """Return how many elements the inputs of a call have, 1 at least."""
    return max(sum(math.prod(shape) for shape, _ in inputs), 1)


@dataclass(slots=True)
class Group:
    """Evaluations that are alike.

    Attributes:
        number: Number of the group, from 0 in the order of first calls.
        subject: Name of the model or function.
        phase: What the model does: `training step`, `prefill`, `extend`, `decode`; empty for
            inference.
        variant: What else tells the group from others, such as which optimizer stepped.
        batch_first: Whether inputs lead with the number of samples, as far as is known.
        model_calls: The numbers of calls of the model that evaluations have, or were expected to.
        sizes: How many evaluations had each number of calls and set of input shapes and data types.
    """

    number: int
    subject: str
    phase: str
    variant: str
    batch_first: bool = True
    model_calls: set[int] = field(default_factory=lambda: {1})
    sizes: Counter[Size] = field(default_factory=Counter)

    @property
    def trains(self) -> bool:
        """Whether the evaluations are training steps."""
        return self.phase == TRAINING_STEP and self.variant != NO_BACKWARD

    @property
    def calls(self) -> int:
        """How many evaluations of the group were seen."""
        return self.sizes.total()

    def is_of(self, variant: str, model_calls: int) -> bool:
        """Return whether evaluations of this variant, with so many calls, are of the group."""
        known = self.model_calls
        return variant == self.variant and (model_calls in known or len(known) > 1)

    @property
    def by_calls(self) -> Counter[int]:
        """How many evaluations there were of each number of calls of the model."""
        found = Counter[int]()
        for (model_calls, _), count in self.sizes.items():
            found[model_calls] += count
        return found

    @property
    def usual_calls(self) -> int:
        """How often the model is called in most evaluations."""
        return max(self.by_calls.items(), key=lambda item: item[1], default=(1, 0))[0]

    @property
    def average_calls(self) -> float:
        """How often the model is called in an evaluation, on average."""
        return sum(calls * count for (calls, _), count in self.sizes.items()) / max(self.calls, 1)

    @property
    def varies(self) -> bool:
        """Whether the group holds unlike numbers of calls, or inputs of unlike shapes."""
        return len(self.sizes) > 1

    @property
    def inputs(self) -> list[Inputs]:
        """The unlike inputs, in the order in which they were first seen."""
        return list(dict.fromkeys(inputs for _, inputs in self.sizes))


class Groups:
    """Finds the group of each call.

    Attributes:
        members: The groups, by number; groups that became part of another one stay there.
        moved: For each group that became part of another group, the number of that group.
    """

    def __init__(self) -> None:
        self.members: list[Group] = []
        self.moved: dict[int, int] = {}
        self._by_key: dict[_Key, Group] = {}
        self._families: dict[_Family, _Likeness] = {}
        self._rests: dict[_Family, Group] = {}

    def find(self, call: ModelCall, variant: str = "", model_calls: int = 1) -> Group:
        """Return the group of a call, a new group if no call was like this one."""
        family = (call.subject, call.phase, variant)
        likeness = self._families.get(family)
        if likeness is None:
            likeness = self._families[family] = _Likeness()
        return self._group(family, likeness.fixed((model_calls, call.inputs)), model_calls)

    def count(self, group: Group, call: ModelCall, model_calls: int = 1) -> Group:
        """Note an evaluation of the group, and return the group that the evaluation is in now."""
        size = model_calls, call.inputs
        group.sizes[size] += 1
        group.batch_first &= call.batch_first
        group.model_calls.add(model_calls)
        if group.variant == _REST:  # whatever comes, it stays one group
            return group
        family = (group.subject, group.phase, group.variant)
        likeness = self._families[family]
        if likeness.note(size):
            self._join(family, likeness)
            return self._group(family, likeness.fixed(size), model_calls)
        return group

    def known(self, subject: str, phase: str, inputs: Inputs) -> Group | None:
        """Return the group of a call that is an evaluation, if calls like it have been seen."""
        family = (subject, phase, "")
        likeness = self._families.get(family)
        fixed = likeness.fixed((1, inputs)) if likeness is not None else ()
        return self._by_key.get((family, fixed))

    def current(self) -> list[Group]:
        """Return the groups that are part of no other."""
        return [group for group in self.members if group.number not in self.moved]

    def final(self, number: int) -> int:
        """Return the number of the group that a group is part of in the end."""
        while number in self.moved:
            number = self.moved[number]
        return number

    def _group(self, family: _Family, fixed: tuple[object, ...], model_calls: int) -> Group:
        group = self._by_key.get((family, fixed))
        if group is not None:
            return group
        if len(self._by_key) >= MOST:
            return self._rest(family, model_calls)
        group = self._by_key[family, fixed] = self._new(family, model_calls)
        return group

    def _rest(self, family: _Family, model_calls: int) -> Group:
        """Return the group of the calls of a family beyond those that are kept apart."""
        family = (family[0], family[1], _REST)
        if family not in self._rests and len(self._rests) >= MOST_RESTS:
            family = _REST_OF_ALL
        if family not in self._rests:
            self._rests[family] = self._new(family, model_calls)
        return self._rests[family]

    def _new(self, family: _Family, model_calls: int) -> Group:
        group = Group(len(self.members), *family, model_calls={model_calls})
        self.members.append(group)
        return group

    def _join(self, family: _Family, likeness: _Likeness) -> None:
        """Make one group of the groups of a family that no longer differ."""
        mine = [key for key in self._by_key if key[0] == family]
        groups = [self._by_key.pop(key) for key in mine]
        for group in groups:
            # Of a group that was expected and never came only the number of calls is known.
            size = next(iter(group.sizes), (min(group.model_calls), ()))
            key = (family, likeness.fixed(size))
            into = self._by_key.setdefault(key, group)
            if into is not group:
                into.sizes.update(group.sizes)
                into.model_calls |= group.model_calls
                into.batch_first &= group.batch_first
                self.moved[group.number] = into.number


class _Likeness:
    """The sizes of the evaluations of one model in one phase, and what of them is ever new."""

    def __init__(self) -> None:
        self._calls: set[int] = set()  # unlike numbers of calls
        self._places: defaultdict[int, _Place] = defaultdict(_Place)

    def fixed(self, size: Size) -> tuple[object, ...]:
        """Return what tells groups apart: the number of calls and the inputs, less what is free."""
        model_calls, inputs = size
        told = None if self._any_calls else model_calls
        return told, *(self._places[at].kept(each) for at, each in enumerate(inputs))

    def note(self, size: Size) -> bool:
        """Note the size of an evaluation; return whether more of it became free."""
        model_calls, inputs = size
        before = self._any_calls
        if not before:
            self._calls.add(model_calls)
        freed = [self._places[at].note(each) for at, each in enumerate(inputs)]
        return any(freed) or self._any_calls is not before

    @property
    def _any_calls(self) -> bool:
        return len(self._calls) >= _FREE_CALLS_AFTER


class _Place:
    """An input of a model, and which of its dimensions are ever new."""

    def __init__(self) -> None:
        self._seen = 0
        self._unlike: set[Input] = set()
        self._free: dict[int, frozenset[int]] = {}  # by the rank

    def kept(self, each: Input) -> Input:
        """Return what of an input tells groups apart; a dimension that does not is -1."""
        shape, dtype = each
        free = self._free.get(len(shape))
        if not free:
            return each
        return tuple(-1 if n in free else size for n, size in enumerate(shape)), dtype

    def note(self, each: Input) -> bool:
        """Note an input; return whether more of its dimensions became free."""
        self._seen += 1
        self._unlike.add(self.kept(each))
        # Shapes that are new in every second call, or oftener, do not recur.
        if len(self._unlike) < _FREE_AFTER or 2 * len(self._unlike) <= self._seen:
            return False
        for rank in {len(shape) for shape, _ in self._unlike}:
            shapes = {shape for shape, _ in self._unlike if len(shape) == rank}
            self._free[rank] = self._free.get(rank, frozenset()) | _ever_new(shapes)
        self._unlike.clear()
        self._seen = 0
        return True


def _ever_new(shapes: Collection[tuple[int, ...]]) -> frozenset[int]:
    """Return the dimensions without which most of some unlike shapes of one rank are alike.

    >>> _ever_new([(batch, length) for batch in (1, 32) for length in range(6)])
    frozenset({1})
    """
    if len(shapes) < _FEW_SHAPES:
        return frozenset()
    sizes = [set(each) for each in zip(*shapes, strict=True)]
    free: set[int] = set()
    for most in sorted(range(len(sizes)), key=lambda n: -len(sizes[n])):
        left = {tuple(-1 if n in free else size for n, size in enumerate(s)) for s in shapes}
        if 2 * len(left) <= len(shapes):
            break
        free.add(most)
    return frozenset(free)


def labels(groups: Sequence[Group]) -> list[str]:
    """Return a name for each group that no other of the groups has.

    >>> inputs = (((8, 3), "float32"),)
    >>> one = Group(0, "ResNet", "", "", sizes=Counter({(1, inputs): 1}))
    >>> two = Group(1, "ResNet", "training step", "", sizes=Counter({(4, inputs): 1}))
    >>> labels([one, two])
    ['ResNet 8×3', 'ResNet training step 4 × 8×3']
    """
    steps = {(group.subject, group.variant) for group in groups if group.trains}
    several = Counter(subject for subject, _ in steps)
    plain = [_label(group, told=several[group.subject] > 1) for group in groups]
    again = Counter(plain)
    named = [
        name if again[name] == 1 else _long_label(group)
        for name, group in zip(plain, groups, strict=True)
    ]
    seen: Counter[str] = Counter()
    result = []
    for name in named:
        seen[name] += 1
        result.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return result


def _label(group: Group, *, told: bool) -> str:
    return " ".join(filter(None, (*_what(group, told=told), _leading(group))))


def _what(group: Group, *, told: bool = True) -> tuple[str, ...]:
    """Return the model, what it does, and by which optimizers, if that is to be told."""
    if group.variant == NO_BACKWARD:
        return group.subject, NO_BACKWARD
    stepped = f"({group.variant})" if told and group.variant else ""
    return group.subject, group.phase, stepped


def _calls(group: Group) -> str:
    numbers = group.by_calls
    return "" if set(numbers) <= {1} else f"{_span(numbers)} × "


def _long_label(group: Group) -> str:
    shapes = ", ".join(_ranges(group, at) for at in range(_inputs(group)))
    return " ".join(filter(None, (*_what(group), shapes)))


def _leading(group: Group) -> str:
    return _calls(group) + shape_range([each[0][0] for each in group.inputs if each])


def _ranges(group: Group, at: int) -> str:
    known = [each[at] for each in group.inputs if len(each) > at]
    dtypes = dict.fromkeys(dtype for _, dtype in known)
    return f"{shape_range([shape for shape, _ in known])} {'/'.join(dtypes)}"


def _inputs(group: Group) -> int:
    return max((len(each) for each in group.inputs), default=0)


def shape_range(shapes: Iterable[tuple[int, ...]]) -> str:
    """Return shapes as one text: `8×3`, `8×(37…128)`, or those of unlike ranks one by one.

    >>> shape_range([(8, 37), (8, 128)]), shape_range([(2,), (2, 2)]), shape_range([()])
    ('8×(37…128)', '2 or 2×2', 'scalar')
    """
    by_rank: dict[int, list[tuple[int, ...]]] = {}
    for shape in shapes:
        by_rank.setdefault(len(shape), []).append(shape)
    return " or ".join(
        "×".join(_span(sizes) for sizes in zip(*same, strict=True)) or "scalar"
        for same in by_rank.values()
    )


def _span(sizes: Collection[int]) -> str:
    low, high = min(sizes), max(sizes)
    return str(low) if low == high else f"({low}…{high})"
