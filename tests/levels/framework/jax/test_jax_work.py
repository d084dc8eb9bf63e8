from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from xsp.xplane import Module, read_module
from xsp_levels.framework.hlo_work import flops
from xsp_levels.framework.jax.profiler.program import OPTIMIZER, Operator, describe

x, w = jnp.ones((2, 8, 8, 3)), jnp.ones((3, 3, 3, 4))
NUMBERS = ("NHWC", "HWIO", "NHWC")


def convolved(x: Any, w: Any, **options: Any) -> Any:
    options = {"window_strides": (1, 1), "padding": "SAME", **options}
    return jax.lax.conv_general_dilated(x, w, dimension_numbers=NUMBERS, **options)


def compiled(function: Callable[..., Any], *args: Any) -> Module:
    [module] = jax.jit(function).lower(*args).compile().runtime_executable().hlo_modules()
    # A HloProto is a message with the module as its first field.
    proto = module.as_serialized_hlo_module_proto()
    size, head = len(proto), b"\x0a"
    while size > 127:
        head, size = head + bytes([size & 127 | 128]), size >> 7
    return read_module(head + bytes([size]) + proto)


def counted(function: Callable[..., Any], *args: Any) -> int:
    module = compiled(function, *args)
    around = module.computations[module.entry]
    return sum(flops(module, around, each) or 0 for each in around.values())


@pytest.mark.parametrize(
    ("function", "args", "expected"),
    [
        pytest.param(convolved, (x, w), 2 * 2 * 64 * 4 * 27, id="convolution"),
        pytest.param(
            lambda x, w: jax.nn.relu(convolved(x, w)), (x, w), 2 * 2 * 64 * 4 * 27, id="fused"
        ),
        pytest.param(
            lambda x, w: convolved(x, w, window_strides=(2, 2)),
            (x, w), 2 * 2 * 16 * 4 * 27, id="strides",
        ),
        pytest.param(
            lambda x, w: convolved(x, w, feature_group_count=3),
            (x, jnp.ones((3, 3, 1, 6))), 2 * 2 * 64 * 6 * 9, id="groups",
        ),
        pytest.param(
            lambda x, w: jax.lax.conv_transpose(x, w, (2, 2), "SAME"),
            (x, w), 2 * 2 * 64 * 4 * 27, id="transposed",
        ),
        pytest.param(
            lambda x, w: convolved(jax.nn.relu(convolved(x, w)), jnp.ones((1, 1, 4, 5))).sum(),
            (x, w), 2 * 2 * 64 * (4 * 27 + 5 * 4), id="several",
        ),
        pytest.param(jnp.matmul, (jnp.ones((8, 16)), jnp.ones((16, 4))), 2 * 8 * 16 * 4, id="dot"),
        pytest.param(
            lambda a, b: jnp.einsum("bik,bjk->bij", a, b),
            (jnp.ones((3, 8, 16)), jnp.ones((3, 4, 16))), 2 * 3 * 8 * 16 * 4, id="batch",
        ),
        pytest.param(lambda a: a * 2 + a, (jnp.ones((8, 16)),), 2 * 8 * 16, id="elementwise"),
        pytest.param(jnp.transpose, (jnp.ones((8, 16)),), 0, id="moved"),
    ],
)  # fmt: skip
def test_operations_of_a_program_are_counted(
    function: Callable[..., Any], args: tuple[Any, ...], expected: int
) -> None:
    assert counted(function, *args) == expected


def test_a_gradient_has_as_many_operations_as_what_it_is_of() -> None:
    gradients = jax.grad(lambda x, w: convolved(x, w, window_strides=(2, 2)).sum(), (0, 1))
    assert counted(gradients, x, w) == 2 * 2 * 2 * 16 * 4 * 27


def operators(function: Callable[..., Any], *args: Any) -> list[Operator]:
    module = compiled(function, *args)
    names = {each.name for each in module.computations[module.entry].values()}
    known = describe(1, module, lambda _: False).operators
    return [known[name] for name in names]


def test_what_prepares_weights_runs_before_its_layer() -> None:
    def net(x: Any, w: Any) -> Any:
        with jax.named_scope("first"):
            x = jax.lax.cumsum(x @ w["kernel"])
        with jax.named_scope("second"):
            return jax.lax.cumsum(x * jax.lax.cumsum(jax.lax.rsqrt(w["variance"])))

    weights = {"kernel": jnp.ones((8, 8)), "variance": jnp.ones(8)}
    found = operators(net, jnp.ones((4, 8)), weights)
    early = {(each.layers[1], "rsqrt" in each.primitives) for each in found if each.early}
    assert ("second", True) in early
    assert {layer for layer, _ in early} == {"second"}
    assert not any(each.early for each in found if "mul" in (each.primitive, *each.primitives))


def test_an_operator_that_does_the_work_of_several_layers_lies_around_them() -> None:
    def net(x: Any, w: Any) -> Any:
        with jax.named_scope("tower"):
            for layer in ("first", "second"):
                with jax.named_scope(layer):
                    x = convolved(x, w)
            return x

    found = [each for each in operators(net, x, jnp.ones((3, 3, 3, 3))) if each.flops]
    if len(found) == 1:  # as XLA fuses on this machine
        assert found[0].layers == ("net", "tower")
        assert set(found[0].fused_layers) == {"tower.first", "tower.second"}
    assert sum(each.flops or 0 for each in found) == 2 * 2 * 2 * 64 * 3 * 27


def test_what_updates_weights_is_told_from_the_passes() -> None:
    def step(w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            with jax.named_scope("dense"):
                return jnp.sum(jnp.sin(x @ w))

        return w - 0.1 * jax.grad(loss)(w)

    found = operators(step, jnp.ones((8, 4)), jnp.ones((16, 8)))
    paths = {(each.layers, each.backward) for each in found if each.flops}
    assert (("step", OPTIMIZER), False) in paths
    assert (("step", "dense"), True) in paths
