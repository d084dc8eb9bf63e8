from __future__ import annotations

import copy
from collections import Counter, OrderedDict
from random import Random
from typing import Any

import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from samples import TREES, Node, layer, op, pipeline, trace, wide

import xsp

MIRRORED = {"fused": "split", "split": "fused", "removed": "added", "added": "removed"}
SIDES = {"slower": "faster", "faster": "slower"}


def compared(a: Node, b: Node, kind: str = "layer") -> pl.DataFrame:
    traces = (trace(each, intervals="across 3 processes") for each in (a, b))
    return xsp.compare(*traces, kind=kind, names=("a", "b")).table


def changes(a: Node, b: Node, kind: str = "layer") -> dict[tuple[str | None, str | None], str]:
    """List the differences, by the paths below the model."""
    table = compared(a, b, kind).filter(pl.col("change") != "same")
    paths = [table[f"path_{side}"].str.strip_prefix("predict/Net/") for side in "ab"]
    return dict(zip(zip(*paths, strict=True), table["change"], strict=True))


def net(*children: Node) -> Node:
    return pipeline("predict", layer("Net", "Net", *children))


def block(name: str, of: str = "Block", own_ns: int = 5_000) -> Node:
    return layer(name, of, layer("fc", "Linear", own_ns=own_ns), layer("act", "GELU"))


def conv(of: str = "Conv2d", parameters: int = 100) -> Node:
    return layer("conv", of, own_ns=50_000, parameter_bytes=parameters)


NORM, RELU = layer("bn", "BatchNorm2d", own_ns=9_000), layer("relu", "ReLU", own_ns=4_000)


def test_an_added_layer_is_told_with_all_inside_and_the_rest_is_the_same() -> None:
    before, after = (net(block("a"), *new, block("b")) for new in ((), (block("new"),)))
    assert changes(before, after) == {(None, "new"): "added"}
    assert changes(after, before) == {("new", None): "removed"}
    row = compared(before, after).filter(change="added").row(0, named=True)
    assert row["difference_ns"] == row["own_difference_ns"] == block("new").latency_ns
    assert row["latency_a_ns"] is None
    assert row["verdict"] is None


def test_a_renamed_layer_is_paired_with_its_old_self() -> None:
    assert changes(net(block("a"), NORM), net(block("z"), NORM)) == {("a", "z"): "renamed"}


def test_a_layer_that_changed_its_place_is_moved() -> None:
    assert changes(net(conv(), NORM, RELU), net(RELU, conv(), NORM)) == {("relu", "relu"): "moved"}


@pytest.mark.parametrize(
    ("after", "more"),
    [
        ((conv("ConvReLU2d", 104), layer("bn", "Identity"), layer("relu", "Identity")), 2),
        ((conv("ConvBnReLU2d", 104),), 2),
        ((layer("fused", "ConvBnReLU2d"),), 2),
        ((conv(parameters=104), RELU), 1),
        ((conv(parameters=104), layer("bn", "Identity"), RELU), 1),
    ],
    ids=["emptied", "into the first", "under a new name", "normalization", "its shell left"],
)
def test_layers_that_became_one_are_fused(after: tuple[Node, ...], more: int) -> None:
    before = net(conv(), NORM, RELU)
    [fused] = compared(before, net(*after)).filter(pl.col("change") != "same").to_dicts()
    assert fused["change"] == "fused"
    assert fused["more_a"] == ["predict/Net/bn", "predict/Net/relu"][:more]
    assert fused["latency_a_ns"] == [59_000, 63_000][more - 1]
    assert fused["latency_a_low_ns"] == pytest.approx(0.99 * fused["latency_a_ns"])
    [split] = compared(net(*after), before).filter(pl.col("change") != "same").to_dicts()
    assert (split["change"], split["more_b"][:more]) == ("split", fused["more_a"])
    assert split["difference_ns"] == -fused["difference_ns"]


def called(path: str, of: str = "Linear", *inside: Node) -> Node:
    """Return a call of the module at a path."""
    return layer(path.rpartition(".")[2], of, *inside, module_path=path)


def test_a_model_in_a_wrapper_is_the_same_model() -> None:
    parts = [called("fc"), called("act", "ReLU")]
    wrapped = [called(f"_orig_mod.{each.name}", each.attributes["module_class"]) for each in parts]
    inner = called("_orig_mod", "Net", *wrapped)
    found = changes(net(*parts), pipeline("predict", layer("Net", "OptimizedModule", inner)))
    assert found[("fc", "_orig_mod/fc")] == found[("act", "_orig_mod/act")] == "moved"
    assert "removed" not in found.values()


def test_operators_are_aligned_by_name_and_ordinal_within_their_layer() -> None:
    adds = [op("aten::add", own_ns=1_000 * (i + 1)) for i in range(4)]
    table = compared(net(*adds), net(*adds[:2], op("aten::mul"), *adds[2:]), "op")
    same = table.filter(pl.col("change") == "same")
    assert (same["difference_ns"].drop_nulls()[1:] == 0).sum() >= 4
    assert Counter(table["change"].to_list()) == {"same": 6, "added": 1}


@given(tree=TREES)
def test_a_trace_is_the_same_as_itself(tree: Node) -> None:
    found = xsp.compare(*[trace(pipeline("predict", tree))] * 2, kind=None)
    assert set(found.table["change"]) == {"same"}
    assert set(found.table["difference_ns"]) == {0.0}
    assert set(found.table["verdict"]) == {"not significant"}
    assert not found.settings.height


@given(a=TREES, b=TREES)
def test_the_other_way_round_all_is_mirrored(a: Node, b: Node) -> None:
    there, back = (
        compared(pipeline("predict", x, op("o")), pipeline("predict", y, op("o")), "op")
        for x, y in ((a, b), (b, a))
    )
    mirrored = back.with_columns(
        pl.col("change").replace(MIRRORED),
        pl.col("verdict").replace(SIDES),
        difference_ns=-pl.col("difference_ns"),
        path_a="path_b",
        path_b="path_a",
    )
    columns = ["path_a", "path_b", "change", "difference_ns", "verdict"]
    keys = columns[:2]
    assert there.select(columns).sort(keys).equals(mirrored.select(columns).sort(keys))


@given(st.randoms(use_true_random=False))
@example(Random(877))  # what was fused into another is found elsewhere by its path as well
@example(Random(235))  # a layer that was fused into another holds layers with rows of their own
def test_every_span_is_told_once_wherever_modules_are_called(random: Random) -> None:
    a, b = (pipeline("predict", random_model(random)) for _ in range(2))
    table = compared(a, b, "op")
    assert table["own_difference_ns"].sum() == pytest.approx(table["difference_ns"][0], abs=1e-6)
    for side in "ab":
        paths = table[f"path_{side}"].drop_nulls()
        told = pl.concat([paths, table[f"more_{side}"].explode().drop_nulls()])
        assert told.is_unique().all()


def random_model(random: Random, path: str = "", depth: int = 0) -> Node:
    """Return a model in which modules are called from anywhere, and some are empty or fused."""
    inside: list[Node] = []
    for _ in range(random.randrange(5) if depth < 3 else 0):
        name = random.choice(["0", "1", "a", "conv", "bn"])
        elsewhere = random.choice(["0.a", "conv", "a.bn.0"])
        at = f"{path}.{name}".strip(".") if random.random() < 0.8 else elsewhere
        inside.append(random_model(random, at, depth + 1))
    more: dict[str, Any] = {"module_path": path, "parameter_bytes": random.choice([0, 4])}
    types = ["Conv2d", "BatchNorm2d", "ReLU", "Identity", "ConvReLU2d", "ConvBnReLU2d"]
    of = random.choice(types) if depth else "Net"
    return layer(path.rpartition(".")[2] or "Net", of, *inside, op("aten::add"), **more)


@given(a=TREES, b=TREES)
def test_own_differences_sum_to_that_of_the_whole(a: Node, b: Node) -> None:
    table = compared(pipeline("predict", a, op("o")), pipeline("predict", b, op("o")), "op")
    whole = table["difference_ns"][0]
    assert table["own_difference_ns"].sum() == pytest.approx(whole, abs=1e-6)
    assert table["path_a"].drop_nulls().is_unique().all()
    assert table["path_b"].drop_nulls().is_unique().all()


def test_a_trace_without_layers_is_compared_by_what_both_have() -> None:
    found = xsp.compare(trace(wide(5)), trace(pipeline("predict", op("aten::mul"))))
    assert found.kind == "op"
    with pytest.raises(xsp.AnalysisError, match="predict \\(2\\) has no span of kind layer"):
        xsp.compare(trace(wide(5)), trace(pipeline("predict", op("aten::mul"))), kind="layer")


@pytest.mark.slow
def test_normalizations_that_torch_fuses_into_convolutions_are_fused() -> None:
    torch = pytest.importorskip("torch")
    nn = torch.nn
    parts = {"conv": nn.Conv2d(3, 8, 3), "bn": nn.BatchNorm2d(8), "act": nn.ReLU()}
    before = nn.Sequential(OrderedDict(parts)).eval()
    after = copy.deepcopy(before)
    after.conv = torch.nn.utils.fusion.fuse_conv_bn_eval(after.conv, after.bn)
    after.bn = nn.Identity()
    x = torch.rand(1, 3, 16, 16)
    traces = [xsp.measure(each, x, runs=3) for each in (before, after)]
    found = xsp.compare(*traces, names=("before", "after"))
    [fused] = found.table.filter(pl.col("change") != "same").to_dicts()
    assert fused["change"] == "fused"
    assert fused["path_b"].endswith("/conv")
    assert [path.rpartition("/")[2] for path in fused["more_a"]] == ["bn"]
    assert "- fused: `Sequential/conv + Sequential/bn" in found.markdown()
