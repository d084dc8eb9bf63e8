"""Operations of spans are those that PyTorch counts of the same operators and models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import xsp
from xsp.answer.analyses.tree import Tree
from xsp.answer.analyses.work import work_of
from xsp.answer.analyses.work.formula import flops_of

torch: Any = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
flop_counter: Any = pytest.importorskip("torch.utils.flop_counter")


def test_formulas_count_as_pytorch_does() -> None:
    functional, r = torch.nn.functional, torch.rand
    q, k, v = r(2, 4, 6, 8), r(2, 4, 10, 8), r(2, 4, 10, 8)
    x, w, y = r(2, 4, 9, 9), r(6, 4, 3, 3), r(2, 6, 5, 5)
    settings = ([0], [2, 2], [1, 1], [1, 1], False, [0, 0], 1)
    both, weights = [True, True, False], [False, True, False]
    attend = "aten::_scaled_dot_product_flash_attention_for_cpu"
    cases: list[tuple[str, Any, list[Any], list[Any]]] = [
        ("aten::mm", lambda: r(2, 3) @ r(3, 5), [[2, 3], [3, 5]], []),
        ("aten::bmm", lambda: torch.bmm(r(2, 3, 4), r(2, 4, 5)), [[2, 3, 4], [2, 4, 5]], []),
        (
            "aten::linear",
            lambda: functional.linear(r(2, 7, 3), r(5, 3)),
            [[2, 7, 3], [5, 3]],
            [],
        ),
        (
            "aten::addmm",
            lambda: torch.addmm(r(5), r(2, 3), r(3, 5)),
            [[5], [2, 3], [3, 5]],
            [],
        ),
        (
            "aten::convolution",
            lambda: functional.conv2d(x, w, stride=2, padding=1),
            [x.shape, w.shape],
            [y.shape],
        ),
        (
            "aten::convolution_backward",
            lambda: torch.ops.aten.convolution_backward(y, x, w, *settings, both),
            [y.shape, x.shape, w.shape],
            [x.shape, w.shape],
        ),
        (
            "aten::convolution_backward",
            lambda: torch.ops.aten.convolution_backward(y, x, w, *settings, weights),
            [y.shape, x.shape, w.shape],
            [w.shape],
        ),
        (
            attend,
            lambda: functional.scaled_dot_product_attention(q, k, v),
            [q.shape, k.shape, v.shape],
            [],
        ),
    ]
    for operator, work, given, results in cases:
        with flop_counter.FlopCounterMode(display=False) as counter:
            work()
        assert flops_of(operator, given, results) == counter.get_total_flops() > 0, operator


def test_gradients_count_as_pytorch_does() -> None:
    aten = torch.ops.aten
    q, k, v = [2, 4, 6, 8], [2, 4, 10, 8], [2, 4, 10, 16]
    registered = flop_counter.flop_registry[aten._scaled_dot_product_flash_attention_backward]
    expected = registered([2, 4, 6, 16], q, k, v, out_val=())
    found = flops_of(
        "aten::_scaled_dot_product_flash_attention_backward", [[2, 4, 6, 16], q, k, v], []
    )
    assert found == expected
    tokens = [[b, length, heads, inner] for b, heads, length, inner in ([2, 4, 6, 16], q, k, v)]
    assert flops_of("aten::_flash_attention_backward", tokens, []) == expected
    forward = flop_counter.flop_registry[aten._scaled_dot_product_flash_attention]
    assert flops_of("aten::_flash_attention_forward", tokens[1:], []) == forward(q, k, v)
    x, w, y = [2, 6, 5, 5], [6, 4, 3, 3], [2, 4, 11, 11]
    transposed = flop_counter.flop_registry[aten.convolution](
        x, w, None, None, None, None, True, out_val=y
    )
    assert flops_of("aten::convolution", [x, w], [], transposed=True) == transposed
    backward = flop_counter.flop_registry[aten.convolution_backward]
    mask = (True, True, False)
    more = (None, None, None, None, True, None, None, mask)
    assert flops_of("aten::convolution_backward", [y, x, w], [x, w]) == backward(
        y, x, w, *more, out_val=[x, w]
    )


@pytest.fixture
def net() -> tuple[Any, Any]:
    """Return a small network of real layers, and its input."""
    torch.manual_seed(0)
    nn = torch.nn
    layers = (nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3))
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    return net.eval(), torch.rand(2, 16, 32, 32)


@pytest.mark.parametrize("levels", [2, 3])
def test_a_measured_model_has_the_operations_that_pytorch_counts(net: Any, levels: int) -> None:
    model, images = net
    with torch.no_grad(), flop_counter.FlopCounterMode(display=False) as counter:
        model(images)
    with torch.no_grad():
        trace = xsp.measure(model, images, levels=levels, runs=2)
    work = work_of(Tree.of(trace))
    assert work["flops"].sum() == pytest.approx(counter.get_total_flops(), rel=0.01)
    assert np.isin(work["work_source"].drop_nulls(), ["analytical", "library"]).all()
    assert work["read_bytes"].sum() > sum(p.nbytes for p in model.parameters()) + images.nbytes


def test_a_training_step_has_the_operations_of_its_gradients(net: Any) -> None:
    model, images = net

    def step() -> None:
        model(images).sum().backward()

    with flop_counter.FlopCounterMode(display=False) as counter:
        step()
    trace = xsp.measure(step, levels=2, runs=2)
    found = work_of(Tree.of(trace))["flops"].sum()
    assert found == pytest.approx(counter.get_total_flops(), rel=0.01)
