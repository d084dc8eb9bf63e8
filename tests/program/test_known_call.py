"""Calls that are known by the last one of their model: each is counted as what it is."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import xsp
from xsp_levels.framework.torch.program.call import likeness
from xsp_levels.framework.torch.program.training_step import Given, Known


class Model(nn.Module):  # type: ignore[misc]  # torch may be missing
    """A model that takes a tensor, a mask and a switch, by place or by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, mask: Any = None, use_cache: bool = False) -> torch.Tensor:
        y: torch.Tensor = self.fc(x)
        return y if mask is None else y * mask


class Other(Model):
    """Another model."""


CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((torch.ones(1, 4),), {}),
    ((torch.ones(8, 4),), {}),
    ((torch.ones(1, 4), torch.ones(1, 4)), {}),
    ((torch.ones(1, 4), None), {}),
    ((), {"x": torch.ones(1, 4), "mask": torch.ones(1, 4)}),
    ((), {"mask": torch.ones(1, 4), "x": torch.ones(8, 4)}),
    ((torch.ones(1, 4), 1.0), {}),
    ((torch.ones(1, 4), 2), {}),
    ((torch.ones(1, 4),), {"use_cache": True}),
    ((torch.ones(1, 4),), {"use_cache": False}),
    *(
        ((), {"x": torch.ones(1, 1, 4), "mask": torch.ones(1, n, 4), "use_cache": True})
        for n in (3, 4)
    ),
]


def kind(model: int, call: int) -> tuple[Any, ...]:
    """Return what tells an evaluation from others, as its group has it."""
    args, kwargs = CALLS[call]
    given = [tuple(v.shape) for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)]
    phase = ("decode" if given[0][1] == 1 else "prefill") if kwargs.get("use_cache") else ""
    return bool(model), phase, tuple(given[:1] if phase else given)


blocks = st.tuples(
    st.integers(0, 1), st.integers(0, len(CALLS) - 1), st.booleans(), st.integers(1, 25)
)


@settings(max_examples=12, deadline=None)
@given(st.lists(blocks, min_size=1, max_size=8))
def test_each_call_of_any_loop_is_of_the_group_that_it_is_like(
    made: list[tuple[int, int, bool, int]],
) -> None:
    models = [Model(), Other()]
    expected = Counter[tuple[Any, ...]]()
    with xsp.profile(levels=1, runs=50, replay=False, progress=False) as prof:
        for number, call, gradients, times in made:
            args, kwargs = CALLS[call]
            models[number].train(not gradients)  # with neither alone is it training
            with torch.set_grad_enabled(gradients):
                for _ in range(times):
                    models[number](*args, **kwargs)
                    expected[kind(number, call)] += 1
    assert prof._dispatching is not None
    found = Counter[tuple[Any, ...]]()
    for group in prof._dispatching.plans.groups.current():
        for (_, inputs), count in group.sizes.items():
            shapes = tuple(shape for shape, _ in inputs)
            found[group.subject == "Other", group.phase, shapes] += count
    assert found == expected


@settings(max_examples=6, deadline=None)
@given(st.lists(st.integers(1, 200), min_size=60, max_size=60), st.booleans())
def test_inputs_of_any_length_go_on_with_a_streak_and_keep_their_sizes(
    lengths: list[int], by_keyword: bool
) -> None:
    model = Model().eval()
    with torch.no_grad(), xsp.profile(levels=1, runs=50, replay=False, progress=False) as prof:
        for length in lengths:
            x = torch.ones(length, 4)
            model(x=x) if by_keyword else model(x)
    assert prof._dispatching is not None
    groups = prof._dispatching.plans.groups.current()
    sizes = sum((group.sizes for group in groups), Counter[Any]())
    assert sizes == Counter((1, (((length, 4), "float32"),)) for length in lengths)
    made = prof._dispatching.journal.evaluations
    assert [each.size[1][0][0][0] for each in made] == lengths
    if len(groups) == 1:  # most lengths are unlike
        assert sum(each.went_on for each in made) > 10


def test_a_model_that_is_trained_after_inference_is_seen_to_train() -> None:
    model = Model().eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with xsp.profile(levels=1, runs=50, replay=False, progress=False) as prof:
        for _ in range(40):
            model(X4)
        model.train()
        for _ in range(10):
            model(X4).sum().backward()
            optimizer.step()
    groups = {group["phase"]: group["calls"] for group in prof.trace.metadata["groups"]}
    assert groups == {"inference": 40, "training step": 10}


X4 = torch.ones(1, 4)
X = torch.ones(2, 3)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((torch.ones(2, 3, dtype=torch.float64),), {}),
        ((X, None), {}),
        ((), {"x": X}),
        ((nn.Parameter(X),), {}),
        ((None,), {}),
        ((True,), {}),
    ],
)
def test_what_is_given_otherwise_is_not_like_it(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    assert Given((X,), {}).inputs((torch.zeros(2, 4),), {}) == (((2, 4), "float32"),)
    assert Given((X,), {}).inputs(args, kwargs) is None
    assert Given(args, kwargs).inputs((X,), {}) is None


@pytest.mark.parametrize(
    ("value", "like", "unlike"),
    [(3, 4, 3.0), (True, True, False), (None, None, 0), ("a", "b", 1), (1.5, 2.5, True)],
)
def test_numbers_and_texts_are_alike_and_switches_the_same(
    value: Any, like: Any, unlike: Any
) -> None:
    given = Given((X,), {"value": value})
    assert given.inputs((X,), {"value": like}) == (((2, 3), "float32"),)
    assert given.inputs((X,), {"value": unlike}) is None
    assert given.inputs((X,), {"other": like}) is None


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((torch.zeros(2, 4), 5), {"value": True}),
        ((X.double(), 5), {"value": True}),
        ((nn.Parameter(X), 5), {"value": True}),
        ((X, 5.0), {"value": True}),
        ((X, 5), {"value": False}),
        ((X, 5), {"other": True}),
        ((X, 5), {}),
        ((X,), {"value": True}),
    ],
)
def test_the_same_is_given_where_shapes_are_the_same_too(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    given = Given((X, 5), {"value": True})
    assert given.is_same((torch.zeros(2, 3), 6), {"value": True})
    assert not given.is_same(args, kwargs)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_has_no_shape_or_is_not_looked_into_is_never_the_same() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    assert not Given((X,), {}).is_same((nested,), {})
    for value in (nested, [X], object()):
        assert not Given((value,), {}).is_same((value,), {})


@pytest.mark.parametrize("value", [[X], {"x": X}, (1, 2), object()])
def test_what_would_have_to_be_looked_into_is_like_nothing(value: Any) -> None:
    given = Given((X, value), {})
    assert given.inputs((X, value), {}) is None


class Cache:
    """Stands for a cache of keys and values."""

    length = 0

    def get_seq_length(self) -> int:
        return self.length


@pytest.mark.parametrize(
    ("leading", "inside"),
    [(X, X), (nn.Parameter(X), X), (torch.ones(2, 1), torch.ones(2, 5))],
    ids=["prefill", "subclass", "decode"],
)
def test_a_call_with_a_cache_is_known_by_its_leading_tensor_alone(
    leading: torch.Tensor, inside: torch.Tensor
) -> None:
    model = Model().eval()
    args, kwargs = (), {"past_key_values": Cache(), "x": leading, "mask": inside, "use_cache": True}
    like = likeness(args, kwargs, "Model")
    known = Known(model, (model, args, kwargs), like)
    with torch.no_grad():
        assert known.likeness(model, args, kwargs) in (like, None)
        longer = {**kwargs, "past_key_values": Cache(), "mask": torch.ones(2, 9)}
        plain = type(leading) is torch.Tensor
        assert known.likeness(model, args, longer) == (like if plain else None)
        assert known.likeness(model, args, {**kwargs, "past_key_values": None}) is None
        other = torch.ones(2, 7 if leading.shape[1] == 1 else 1)  # of the other phase
        assert known.likeness(model, args, {**kwargs, "x": other}) is None
    model.train()
    assert known.likeness(model, args, kwargs) is None


def test_embeddings_that_are_a_parameter_stay_the_leading_tensor() -> None:
    model, prompt = Model().eval(), nn.Parameter(torch.ones(1, 5, 4))
    with torch.no_grad(), xsp.profile(levels=1, runs=50, replay=False, progress=False) as prof:
        for _ in range(30):
            model(x=prompt, mask=torch.ones(1, 5, 1), use_cache=True)
    assert [group["calls"] for group in prof.trace.metadata["groups"]] == [30]


def test_groups_of_any_lengths_that_take_turns_both_go_on_with_streaks() -> None:
    model = Model().eval()
    with torch.no_grad(), xsp.profile(levels=1, runs=50, replay=False, progress=False) as prof:
        for length in range(1, 151):
            model(torch.ones(length, 4), torch.ones(length, 1 + 3 * (length % 2)))
    assert prof._dispatching is not None
    made = prof._dispatching.journal.evaluations
    assert sum(each.went_on for each in made[60:]) > 45
