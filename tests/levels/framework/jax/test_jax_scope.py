from __future__ import annotations

import pytest

from xsp_levels.framework.jax.profiler.scope import Scope, parse

OWN = frozenset({"relu", "_where"}).__contains__


@pytest.mark.parametrize(
    ("name", "scope"),
    [
        ("jit(f)/CNN/Conv_0/add", Scope("f", ("CNN", "Conv_0"), "add")),
        ("jit(f)/jit(main)/CNN/add", Scope("f", ("CNN",), "add")),
        ("jit(f)/jvp(CNN)/Conv_0/add", Scope("f", ("CNN", "Conv_0"), "add", derived=True)),
        (
            "jit(step)/transpose(jvp(CNN))/Conv_0/reduce_sum",
            Scope("step", ("CNN", "Conv_0"), "reduce_sum", backward=True, derived=True),
        ),
        ("jit(f)/vmap(eqx.nn.MLP)/vmap()/jit(relu)/max", Scope("f", ("eqx.nn.MLP",), "max")),
        ("jit(f)/jit(block)/mul", Scope("f", ("block",), "mul")),
        ("jit(f)/while/body/closed_call/cell/tanh", Scope("f", ("cell",), "tanh")),
        ("jit(<lambda>)/sin", Scope("<lambda>", (), "sin")),
        ("jit(f)/a/mul;jit(f)/b/add", Scope("f", ("a",), "mul")),
        ("reduce_sum", Scope(primitive="reduce_sum")),
        ("jit(f)", Scope("f")),
        ("", Scope()),
        ("jit(f", Scope(primitive="jit(f")),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_the_name_of_an_operator_says_its_layers(name: str, scope: Scope) -> None:
    assert parse(name, OWN) == scope


def test_scopes_that_hold_a_slash_are_one_layer_in_a_transformation() -> None:
    assert parse("jit(f)/vmap(a/b)/add").layers == ("a/b",)
