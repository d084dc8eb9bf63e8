from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from torch import nn

import xsp
from xsp.clock import SystemClock
from xsp.level import Kind
from xsp.provider import Request, pack, unpack
from xsp_levels.framework.torch.module.compiled import _graph
from xsp_levels.framework.torch.module.compiled_code import parse
from xsp_levels.framework.torch.module.graph import Operator
from xsp_levels.framework.torch.provider import Torch

X = torch.ones(4, 16)
REQUEST = Request(frozenset({Kind.LAYER, Kind.OP}))


class Block(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.project, self.act = nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.project(self.norm(x))) + x


class Net(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList([Block(), Block()]), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x).softmax(-1)


class Pair(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = Block(), Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)
        torch._dynamo.graph_break()
        return self.b(x)


def recorded(call: Callable[[], Any]) -> pl.DataFrame:
    """Return the rows of a second call, the first having compiled the code."""
    provider = Torch()
    call()
    provider.start(SystemClock(), REQUEST)
    try:
        call()
    finally:
        records = provider.stop()
    rows = provider.spans(records)
    assert provider.spans(unpack(provider, pack(provider, records))).equals(rows)
    return rows


def placed(rows: pl.DataFrame) -> list[tuple[str, str | None]]:
    """Return the kernels and products in order, each with the path of its layer."""
    layers = rows.filter(kind="layer").select(parent_id="id", layer="attr.module_path")
    ops = rows.filter(pl.col("name").str.contains(r"^cpp_fused|^aten::(addmm|mm)$"))
    found = ops.sort("start_ns").join(layers, on="parent_id", how="left", maintain_order="left")
    return [
        ("kernel" if name.startswith("cpp") else "product", layer)
        for name, layer in found.select("name", "layer").rows()
    ]


def in_block(path: str) -> list[tuple[str, str | None]]:
    return [("kernel", f"{path}.norm"), ("product", f"{path}.project")]


@pytest.mark.slow
@torch.no_grad()  # type: ignore[untyped-decorator]
def test_kernels_of_a_compiled_model_lie_in_the_layers_that_they_were_written_in(
    compiler: Callable[[Any], Any],
) -> None:
    net = Net().eval()
    expected = net(X)
    model = compiler(net)
    rows = recorded(lambda: model(X))
    assert placed(rows) == [
        *in_block("_orig_mod.blocks.0"),
        *in_block("_orig_mod.blocks.1"),
        ("kernel", "_orig_mod.blocks.1"),
        ("product", "_orig_mod.head"),
        ("kernel", None),  # the softmax is the model's own
    ]
    layers = rows.filter(pl.col("provenance") == "derived")
    assert set(layers.select("name", "attr.module_path", "attr.module_class").rows()) >= {
        ("0", "_orig_mod.blocks.0", "Block"),
        ("norm", "_orig_mod.blocks.0.norm", "LayerNorm"),
        ("project", "_orig_mod.blocks.1.project", "Linear"),
        ("head", "_orig_mod.head", "Linear"),
    }
    fused = rows.filter(pl.col("attr.fused_layers").is_not_null())["attr.fused_layers"].to_list()
    first = ["_orig_mod.blocks.0.act", "_orig_mod.blocks.0"]
    assert fused == [first, [*first, "_orig_mod.blocks.1.act"]]  # what is cheap is computed twice
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    trace = xsp.measure(model, X, levels=2, runs=5, budget=2)
    trace.check()
    assert torch.allclose(model(X), expected, atol=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before


@pytest.mark.slow
@torch.no_grad()  # type: ignore[untyped-decorator]
def test_equal_code_of_two_graphs_is_of_the_layers_of_each(compiler: Callable[[Any], Any]) -> None:
    model = compiler(Pair().eval())
    paths = [layer for _, layer in placed(recorded(lambda: model(X)))]
    one, other = (
        [f"_orig_mod.{i}{part}" for part in (".norm", ".project", "")] for i in ("a", "b")
    )
    assert paths == one + other


@pytest.mark.slow
@torch.no_grad()  # type: ignore[untyped-decorator]
def test_one_graph_of_several_modules_is_of_the_module_that_is_called(
    compiler: Callable[[Any], Any],
) -> None:
    net = Net().eval()
    for block in net.blocks:
        block.compile()
    found = placed(recorded(lambda: net(X)))
    own = [("kernel", None)]  # directly in the block that is called
    assert found[:6] == [*in_block("blocks.0"), *own, *in_block("blocks.1"), *own]


@pytest.mark.slow
@torch.no_grad()  # type: ignore[untyped-decorator]
def test_modules_of_a_compiled_function_are_layers_unless_a_module_is_called_around_it(
    compiler: Callable[[Any], Any],
) -> None:
    net = Net().eval()
    function = compiler(lambda x: net(x) + 0)

    class Around(nn.Module):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(x)

    assert placed(recorded(lambda: function(X)))[1] == ("product", "blocks.0.project")
    assert {layer for _, layer in placed(recorded(lambda: Around()(X)))} == {None}


@pytest.mark.slow
def test_the_forward_pass_of_a_compiled_training_step_has_layers(
    compiler: Callable[[Any], Any],
) -> None:
    model = compiler(Net())
    rows = recorded(lambda: model(X).sum().backward())
    assert placed(rows)[:2] == in_block("_orig_mod.blocks.0")
    layers = rows.filter(pl.col("provenance") == "derived")
    backward = rows.filter(pl.col("name").str.starts_with("CompiledFunctionBackward"))
    assert backward.height
    assert all(layers["end_ns"] <= backward.select(pl.col("start_ns").max()).item())


class Named(nn.Module):  # type: ignore[misc]
    """Its method has no `self`, and goes on after a graph break with another variable."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = Block(), Block()

    def forward(this, x: torch.Tensor) -> torch.Tensor:  # noqa: N805
        x, b = this.a(x), this.b
        torch._dynamo.graph_break()
        return this.b(x) if x.ndim > 1 else b(x)


@pytest.mark.slow
@torch.no_grad()  # type: ignore[untyped-decorator]
def test_a_module_that_does_not_call_itself_self_has_layers(
    compiler: Callable[[Any], Any],
) -> None:
    model = compiler(Named().eval())
    found = placed(recorded(lambda: model(X)))
    own = ["_orig_mod.a", "_orig_mod.b"]
    assert found == [each for path in own for each in (*in_block(path), ("kernel", path))]


@pytest.mark.slow
@torch.no_grad()  # type: ignore[untyped-decorator]
@pytest.mark.parametrize("in_place", [True, False])
def test_a_compiled_sequential_has_layers(compiler: Callable[[Any], Any], in_place: bool) -> None:
    class Around(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            blocks = nn.Sequential(Block(), Block()).eval()
            self.blocks = blocks if in_place else compiler(blocks)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.blocks(x)

    net = Around()
    if in_place:
        net.blocks.compile()
    at = "blocks" if in_place else "blocks._orig_mod"
    found = placed(recorded(lambda: net(X)))
    assert found == [*in_block(f"{at}.0"), *in_block(f"{at}.1"), ("kernel", f"{at}.1")]


@pytest.mark.slow
@torch.no_grad()  # type: ignore[untyped-decorator]
@pytest.mark.filterwarnings("ignore:dynamo_pgo force disabled:UserWarning")
def test_code_that_no_cache_has_is_of_its_layers(compiler: Callable[[Any], Any]) -> None:
    model = compiler(Net().eval())
    with torch._inductor.config.patch(force_disable_caches=True):
        rows = recorded(lambda: model(X))
    assert placed(rows)[:2] == in_block("_orig_mod.blocks.0")
    calls = rows.filter(pl.col("name").str.starts_with("## Call CompiledFxGraph"))
    assert calls["name"].to_list() == ["## Call CompiledFxGraph ##"]


# What a user's script is: nothing of xsp's is imported before the model is compiled and called.
SCRIPT = """
import torch
from torch import nn

torch.set_num_threads(1)

class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.a, s.act, s.norm, s.b = nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(s, x):
        return s.b(s.norm(s.act(s.a(x))))

x = torch.ones(4, 8)
net = Net().eval()
models = [torch.compile(net), torch.compile(nn.Sequential(net.a, net.act, net.norm, net.b))]
with torch.no_grad():
    for model in models:
        model(x)

import xsp

for model in models:
    with torch.no_grad(), xsp.profile(levels=2, budget=1) as prof:
        for _ in range(20):
            model(x)
    with torch.no_grad():
        trace = xsp.measure(model, x, levels=2, budget=1)
    for each in (prof.trace, trace):
        layers = each.spans.unnest("attributes").filter(kind="layer")
        print("layers:", *layers["module_path"].unique().sort())
"""


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
def test_a_script_with_a_compiled_model_has_layers_whatever_the_cache_holds(tmp_path: Path) -> None:
    for _ in ("empty cache", "full cache"):
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        found = [line for line in done.stdout.splitlines() if line.startswith("layers:")]
        module = "layers:  _orig_mod _orig_mod.a _orig_mod.b _orig_mod.norm"
        sequential = "layers:  _orig_mod _orig_mod.0 _orig_mod.2 _orig_mod.3"
        assert found == [module, module, sequential, sequential], done.stderr


def traced(module: nn.Module, *given: torch.Tensor) -> Any:
    """Return the graph that Dynamo traces of a module."""
    graphs: list[Any] = []

    def keep(graph: Any, inputs: Any) -> Any:
        graphs.append(graph.graph)
        return graph.forward

    torch._dynamo.reset()
    torch.compile(module, backend=keep)(*given)
    torch._dynamo.reset()
    return graphs[0]


class Two(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Module()
        self.tower.left, self.tower.right = nn.Linear(16, 16), nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.tower.left(x).sin() * self.tower.right(x).cos())


# Inputs in order: weight and bias of left, x, weight and bias of right, and of norm.
CODE = """
cpp_fused_0 = async_compile.cpp_pybinding(['const float*', 'const float*', 'float*', 'float*'],
    a, b, c, d, e, f, g = args
    cpp_fused_0({prepared}, buf0, buf1)
    # Topologically Sorted Source Nodes: [{left}], Original ATen: [aten.addmm]
    extern_kernels.addmm(b, c, buf0, out=buf2)
    # Topologically Sorted Source Nodes: [{right}], Original ATen: [aten.addmm]
    extern_kernels.addmm(e, c, buf1, out=buf3)
"""


@pytest.fixture(scope="module")
def two() -> Any:
    return traced(Two(), X)


def operators(graph: Any, prepared: str) -> list[Operator]:
    text = CODE.format(prepared=prepared, left="linear", right="linear_1")
    made = _graph(parse(text), graph)
    assert made is not None
    assert made.of_module
    return list(made.operators)


def test_a_kernel_that_prepares_several_products_lies_around_their_layers(two: Any) -> None:
    kernel, left, right = operators(two, "a, d")
    assert kernel.fused_layers == ("tower.left", "tower.right")
    assert kernel.layers == ()  # `tower` itself is never called
    assert (left.layers, right.layers) == (("tower.left",), ("tower.right",))
    assert operators(two, "a, c")[0].layers == ("tower.left",)  # both read `x`


def test_a_kernel_lies_in_the_layer_of_its_last_operator(two: Any) -> None:
    (kernel, *_) = operators(two, "a, f")
    assert kernel == Operator("cpp_fused_0", ("norm",), ())


def test_code_of_another_graph_is_not_taken(two: Any) -> None:
    text = CODE.format(prepared="a, d", left="linear", right="linear_1")
    assert _graph(parse(text), two) is not None
    assert _graph(parse(text.replace("linear_1", "bilinear")), two) is None
    assert _graph(parse(text.replace("f, g", "f")), two, cached=True) is None
    assert _graph(parse(text.replace("f, g", "f")), two) is None


def test_cached_code_of_a_graph_with_other_names_is_told_by_what_it_reads(two: Any) -> None:
    text = CODE.format(prepared="a, f", left="left", right="linear")
    made = _graph(parse(text), two, cached=True)
    assert made is not None
    paths = [each.layers for each in made.operators]
    assert paths == [("norm",), ("tower.left",), ("tower.right",)]
