from __future__ import annotations

import linecache
from collections.abc import Iterator
from pathlib import Path

import pytest

from xsp.xplane import read_module
from xsp_levels.framework.jax.profiler.program import Layer, Program, describe

DATA = Path(__file__).parents[3] / "data" / "jax"
SOURCE = "/home/user/pro/models.py"  # where the models were when their programs were recorded
LIBRARIES = "/lib/python3/"
OWN = frozenset({"relu", "square"}).__contains__


@pytest.fixture(autouse=True)
def source() -> Iterator[None]:
    """Have Python find the lines of the recorded models."""
    text = (DATA / "models.py.txt").read_text()
    linecache.cache[SOURCE] = (len(text), None, text.splitlines(keepends=True), SOURCE)
    yield
    linecache.cache.pop(SOURCE)


def program(name: str) -> Program:
    return describe(7, read_module((DATA / f"{name}.hlo.pb").read_bytes()), OWN, LIBRARIES)


def paths(of: Program) -> set[str]:
    """Return the layers of the operators that XLA runs."""
    ran = ("fusion", "convolution", "dot")
    return {"/".join(each.layers) for each in of.operators.values() if each.opcode in ran}


def test_modules_of_linen_are_layers_with_class_and_parameters() -> None:
    layers = program("linen").layers
    assert layers["apply/CNN"] == Layer("CNN", "", 4 * (27 * 4 + 4 + 36 * 4 + 4 + 256 * 5 + 5))
    assert layers["apply/CNN/Block_0/Conv_0"] == Layer("Conv", "Block_0.Conv_0", 4 * (36 * 4 + 4))
    assert layers["apply/CNN/head"] == Layer("Dense", "head", 4 * (256 * 5 + 5))
    assert layers["apply"] == Layer("", "", layers["apply/CNN"].parameter_bytes)


def test_modules_of_nnx_are_found_by_the_calls_in_which_they_were_traced() -> None:
    found = program("nnx")
    assert {"run/MLP/l1", "run/MLP/l2", "run/MLP/Inner/lin"} <= paths(found)
    assert found.layers["run/MLP/Inner/lin"].cls == "Linear"
    assert found.layers["run/MLP/l1"].path == "l1"
    assert found.layers["run/MLP/l1"].parameter_bytes is None  # nnx.jit gives them no names


def test_modules_of_equinox_are_layers() -> None:
    found = program("equinox")
    assert {"erun/MLP", "erun/MLP/Linear"} <= paths(found)
    assert found.layers["erun/MLP/Linear"].cls == "Linear"


def test_backward_operators_lie_in_the_layer_of_the_forward_pass() -> None:
    found = program("training").operators.values()
    backward = {"/".join(each.layers) for each in found if each.backward}
    assert "train_step/CNN/Block_0/Conv_0" in backward
    forward = [each for each in found if each.primitive == "conv_general_dilated"]
    assert {each.backward for each in forward} == {False, True}


def test_a_fusion_says_what_was_fused() -> None:
    found = program("linen").operators["add_bitcast_fusion"]
    assert found.layers == ("apply", "CNN", "Block_0")
    assert {"add", "max"} <= set(found.primitives)
    assert "CNN.Block_0.Conv_0" in found.fused_layers
    assert found.outputs[0].sizes == (2, 256)


def test_an_operator_knows_who_takes_its_result() -> None:
    operators = program("linen").operators
    first = next(o for o in operators.values() if o.layers[-1:] == ("Conv_0",) and o.users)
    assert all(user in operators for user in first.users)
    assert operators["ynn_fusion"].users == ("broadcast_add_fusion",)


@pytest.mark.parametrize("size", [1, 100, 3000])
def test_a_program_that_is_cut_short_is_refused(size: int) -> None:
    data = (DATA / "linen.hlo.pb").read_bytes()
    with pytest.raises(ValueError, match="end"):
        read_module(data[:size])
