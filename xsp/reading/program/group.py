"""Groups: members (calls, training steps, marked steps) that are alike, and names for them.

Members are alike that are of one model, do one thing (a training step, prefill, decode, …) with the
same optimizers, arguments, settings and inputs of the same shapes, in one region of the user's.
Where an input has a new shape in every second call or oftener (sentences of any length), the
dimensions that are new tell no groups apart; nor does a number that is ever new, as the step of a
diffusion model.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from xsp.provider import TRAINING_STEP, CallFacts, Inputs
from xsp.text import counted

NO_BACKWARD = "without backward"
_FREE_AFTER = 12  # unlike shapes of an input, after which it is asked whether they recur
_FREE_CALLS_AFTER = 6  # steps of fixed numbers of calls have two: micro-batches, and the last few
_FEW_SHAPES = 3  # of one rank; fewer do not tell which dimensions vary
MOST_GROUPS = 256  # that are kept apart; further ones are one group per model and phase


@dataclass(frozen=True, slots=True)
class Member:
    """The properties of a member by which groups are told apart.

    Attributes:
        facts: The facts of its call, or of a step's first call.
        step: Whether it is a training step.
        calls: How often a step calls its model.
        passes: How many backward passes a step has.
        optimizers: Number of its optimizers.
        region: Number of the path of regions that it lies in.
        marked: Name of a step that the user marked; empty for others.
    """

    facts: CallFacts
    step: bool = False
    calls: int = 1
    passes: int = 0
    optimizers: int = 0
    region: int = 0
    marked: str = ""


@dataclass(slots=True)
class Group:
    """Members that are alike.

    Attributes:
        member: What the first of them is.
        sizes: How many members had each number of calls and inputs.
        label: A name that no other group has.
    """

    member: Member
    sizes: Counter[tuple[int, Inputs]] = field(default_factory=Counter)
    label: str = ""

    @property
    def count(self) -> int:
        """How many members there are."""
        return self.sizes.total()

    @property
    def trains(self) -> bool:
        """Whether the members are training steps."""
        return self.member.step or self.member.facts.phase == TRAINING_STEP

    @property
    def phase(self) -> str:
        """Phase of the model in the members."""
        return TRAINING_STEP if self.trains else self.member.facts.phase

    @property
    def varies(self) -> bool:
        """Whether members have unlike inputs, or numbers of calls."""
        return len(self.sizes) > 1

    @property
    def inputs(self) -> list[Inputs]:
        """The unlike inputs, in the order in which they were first seen."""
        return list(dict.fromkeys(inputs for _, inputs in self.sizes))

    @property
    def average_calls(self) -> float:
        """How often a member calls its model on average."""
        whole = sum(calls * count for (calls, _), count in self.sizes.items())
        return whole / max(self.count, 1)


def groups_of(
    members: Sequence[Member], counts: Sequence[int], regions: Sequence[str]
) -> tuple[list[Group], list[int]]:
    """Return the groups of unlike members, and the group of each of these.

    Args:
        members: The unlike members.
        counts: How often each came.
        regions: Name of each path of regions.
    """
    families: defaultdict[Hashable, list[int]] = defaultdict(list)
    for at, member in enumerate(members):
        families[_family(member)].append(at)
    keys: list[Hashable] = [None] * len(members)
    for family, mine in families.items():
        free = _free([members[at] for at in mine], [counts[at] for at in mine])
        for at in mine:
            keys[at] = family, *_fixed(members[at], free)
    if len(set(keys)) > MOST_GROUPS:
        often: Counter[Hashable] = Counter()
        for key, count in zip(keys, counts, strict=True):
            often[key] += count
        kept = {key for key, _ in often.most_common(MOST_GROUPS)}
        keys = [k if k in kept else _family(m) for k, m in zip(keys, members, strict=True)]
    groups: list[Group] = []
    known: dict[Hashable, int] = {}
    of = []
    for member, count, key in zip(members, counts, keys, strict=True):
        if key not in known:
            known[key] = len(groups)
            groups.append(Group(member))
        of.append(known[key])
        groups[of[-1]].sizes[member.calls, member.facts.inputs] += count
    for group, label in zip(groups, _labels(groups, regions), strict=True):
        group.label = label
    return groups, of


def _family(member: Member) -> Hashable:
    facts = member.facts
    plain = tuple(each for each in facts.arguments if not _number(each))
    return (
        member.marked, facts.owner, facts.model, facts.layer, facts.phase, member.step,
        member.passes, member.optimizers, member.region, plain, facts.settings,
        *((facts.gradients, facts.training) if not member.step else ()),
    )  # fmt: skip


def _number(argument: str) -> bool:
    return argument.rpartition("=")[2].replace(".", "").replace("-", "").isdigit()


@dataclass(frozen=True, slots=True)
class _Free:
    """The properties of a family's members that tell no groups apart."""

    calls: bool
    numbers: bool
    dimensions: dict[tuple[int, int], frozenset[int]]  # by place of the input, and rank


def _free(members: Sequence[Member], counts: Sequence[int]) -> _Free:
    whole = sum(counts)
    numbers = {tuple(each for each in m.facts.arguments if _number(each)) for m in members}
    calls = {member.calls for member in members}
    dimensions = {}
    places = max((len(member.facts.inputs) for member in members), default=0)
    for place in range(places):
        unlike = {m.facts.inputs[place] for m in members if len(m.facts.inputs) > place}
        if len(unlike) < _FREE_AFTER or 2 * len(unlike) <= whole:
            continue
        for rank in {len(shape) for shape, _ in unlike}:
            found = _ever_new({shape for shape, _ in unlike if len(shape) == rank})
            dimensions[place, rank] = found
    many = len(numbers) >= _FREE_AFTER and 2 * len(numbers) > whole
    return _Free(len(calls) >= _FREE_CALLS_AFTER, many, dimensions)


def _fixed(member: Member, free: _Free) -> tuple[Hashable, ...]:
    facts = member.facts
    numbers = tuple(each for each in facts.arguments if _number(each))
    inputs = tuple(
        (
            tuple(
                -1 if n in free.dimensions.get((place, len(shape)), ()) else size
                for n, size in enumerate(shape)
            ),
            dtype,
        )
        for place, (shape, dtype) in enumerate(facts.inputs)
    )
    return (
        None if free.calls else member.calls, () if free.numbers else numbers, facts.cache, inputs,
    )  # fmt: skip


def _ever_new(shapes: Collection[tuple[int, ...]]) -> frozenset[int]:
    """Return the dimensions by which most of some shapes of one rank differ.

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


def _labels(groups: Sequence[Group], regions: Sequence[str]) -> list[str]:
    """Return a name for each group: as short as tells it from all others."""
    labels = [_label(group) for group in groups]
    for more in (_all_shapes, _cache, _arguments, _gradients, _optimizers, _settings):
        labels = _told(labels, _unlike(labels, [more(group) for group in groups]))
    around = [regions[g.member.region] for g in groups]
    labels = _told(labels, [f"in {name}" if name else "" for name in around])
    seen: Counter[str] = Counter()
    result = []
    for label in labels:
        seen[label] += 1
        result.append(label if seen[label] == 1 else f"{label} ({seen[label]})")
    return result


def _unlike(labels: Sequence[str], words: Sequence[Sequence[str]]) -> list[str]:
    """Return of the words of each label those that not all of one label have."""
    common: dict[str, set[str]] = {}
    for label, some in zip(labels, words, strict=True):
        common[label] = common.get(label, set(some)) & set(some)
    return [
        ", ".join(word for word in some if word not in common[label])
        for label, some in zip(labels, words, strict=True)
    ]


def _told(labels: Sequence[str], more: Sequence[str]) -> list[str]:
    """Return labels, longer ones where several groups would share a label."""
    unlike: defaultdict[str, set[str]] = defaultdict(set)
    for label, word in zip(labels, more, strict=True):
        unlike[label].add(word)
    return [
        f"{label} {word}".rstrip() if len(unlike[label]) > 1 else label
        for label, word in zip(labels, more, strict=True)
    ]


def _label(group: Group) -> str:
    member = group.member
    if member.marked:
        return member.marked
    facts = member.facts
    what = group.phase
    if not group.trains and facts.gradients and facts.training:
        what = NO_BACKWARD
    calls = sorted({calls for calls, _ in group.sizes})
    often = "" if calls in ([1], [0]) else f"{_span(calls)} × "
    shapes = [inputs[0][0] for inputs in group.inputs if inputs]
    part = facts.layer.partition(" ")[0] if " " in facts.layer and not group.trains else ""
    model = f"{facts.model}.{part}" if part else facts.model
    return " ".join(filter(None, (model, what, often + shape_range(shapes))))


def _all_shapes(group: Group) -> Sequence[str]:
    alike = Counter(shapes_of(group))  # a cache by hand is many tensors of one shape
    return [f"{often} of {shape}" if often > 1 else shape for shape, often in alike.items()]


def _arguments(group: Group) -> Sequence[str]:
    return group.member.facts.arguments


def _cache(group: Group) -> Sequence[str]:
    length = group.member.facts.cache
    return (f"cache ≤ {length:,}",) if length else ()


def _settings(group: Group) -> Sequence[str]:
    return group.member.facts.settings


def _gradients(group: Group) -> Sequence[str]:
    return ("with gradients",) * (group.member.facts.gradients and not group.trains)


def _optimizers(group: Group) -> Sequence[str]:
    return (counted(group.member.passes, "backward pass"),) * group.trains


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


def shapes_of(group: Group) -> list[str]:
    """Return shape and data type of each input of a group."""
    unlike = group.inputs
    width = max((len(inputs) for inputs in unlike), default=0)
    known = [[inputs[at] for inputs in unlike if len(inputs) > at] for at in range(width)]
    return [
        f"{shape_range([shape for shape, _ in each])} {'/'.join(dict.fromkeys(d for _, d in each))}"
        for each in known
    ]
