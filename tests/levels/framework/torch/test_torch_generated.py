from __future__ import annotations

import random
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import xsp
from xsp.clock import SystemClock
from xsp.level import Kind
from xsp.provider import Request, pack, unpack
from xsp_levels.framework.torch.profiler.generated import GeneratedKernels, source_operators
from xsp_levels.framework.torch.profiler.operator import OperatorRecorder, operator_rows
from xsp_levels.framework.torch.provider import Torch

KERNEL = "cpp_fused_add_relu_0"
A = torch.ones(2, 3)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return a module as Inductor generates one, with two kernels that Python made."""
    cache = pytest.importorskip(
        "torch._inductor.codecache", reason="needs Inductor: pip install 'torch>=2.4'"
    ).PyCodeCache
    made = ModuleType("made")

    def kernel(given: torch.Tensor, size: int) -> tuple[int, int]:
        return given.ndim, size

    def broken(given: torch.Tensor) -> None:
        raise ZeroDivisionError("inductor: division by zero")

    vars(made).update({KERNEL: kernel, "cpp_fused_div_1": broken, "cpp_x": 3, "torch": torch})
    monkeypatch.setattr(cache, "modules", [made])
    return made


def recorded(work: Callable[[], Any], *, detail: bool = False) -> Any:
    recorder = OperatorRecorder()
    recorder.start(SystemClock(), detail)
    try:
        work()
    finally:
        records = recorder.stop()
    return records


@pytest.mark.parametrize("detail", [False, True])
def test_a_generated_kernel_is_an_operator_with_its_source_operators(
    module: ModuleType, detail: bool
) -> None:
    results = []
    records = recorded(
        lambda: results.append(getattr(module, KERNEL)(A, 5)),
        detail=detail,
    )
    rows = operator_rows(records)
    assert results == [(2, 5)]
    assert rows.select("name", "attr.source_ops").rows() == [(KERNEL, "aten.add, aten.relu")]
    if detail:
        assert rows["attr.input_shapes"].to_list() == [[[2, 3]]]


def test_generated_modules_are_as_before_afterwards(module: ModuleType) -> None:
    before = dict(vars(module))
    recorder = OperatorRecorder()
    recorder.start(SystemClock(), False)
    assert vars(module)[KERNEL] is not before[KERNEL]
    assert vars(module)["cpp_x"] == 3
    recorder.stop()
    assert vars(module) == before


def test_what_a_kernel_raises_comes_out(module: ModuleType) -> None:
    def work() -> None:
        with pytest.raises(ZeroDivisionError):
            vars(module)["cpp_fused_div_1"](A)

    assert operator_rows(recorded(work))["name"].to_list() == ["cpp_fused_div_1"]


def test_a_kernel_that_others_replaced_meanwhile_stays_as_they_left_it(module: ModuleType) -> None:
    kernels = GeneratedKernels()
    kernels.start(detail=False)
    vars(module)[KERNEL] = print
    kernels.stop()
    assert vars(module)[KERNEL] is print


def test_a_marked_kernel_that_is_still_running_elsewhere_ends_well(module: ModuleType) -> None:
    kernels, results = GeneratedKernels(), []
    kernels.start(detail=False)
    marked = vars(module)[KERNEL]
    kernels.stop()
    thread = threading.Thread(target=lambda: results.append(marked(A, 1)))
    thread.start()
    thread.join()
    assert results == [(2, 1)]


def test_nothing_is_touched_where_operators_are_not_recorded(module: ModuleType) -> None:
    before = dict(vars(module))
    provider = Torch()
    provider.start(SystemClock(), Request(frozenset({Kind.PIPELINE, Kind.LAYER})))
    assert vars(module) == before
    provider.stop()


def test_records_that_were_kept_know_the_source_operators(module: ModuleType) -> None:
    provider = Torch()
    provider.start(SystemClock(), Request(frozenset({Kind.OP}), whole_model=True))
    getattr(module, KERNEL)(A, 5)
    records = provider.stop()
    kept = provider.spans(unpack(provider, pack(provider, records)))
    assert kept.equals(provider.spans(records))
    assert kept["attr.source_ops"].to_list() == ["aten.add, aten.relu"]


@pytest.mark.parametrize(
    ("kernel", "operators"),
    [
        ("cpp_fused_gelu_1", "aten.gelu"),
        ("cpp_fused__softmax_4", "aten._softmax"),
        (
            "cpp_fused__native_batch_norm_legit_no_training_add_relu_7",
            "aten._native_batch_norm_legit_no_training, aten.add, aten.relu",
        ),
        (
            "cpp_fused_convolution_max_pool2d_with_indices_relu_12",
            "aten.convolution, aten.max_pool2d_with_indices, aten.relu",
        ),
        ("cpp_fused_add_gelu_gelu_backward_3", "aten.add, aten.gelu, aten.gelu_backward"),
        ("cpp_fused_index_select_0", None),  # index_select, or index and select
        ("cpp_fused_relu_add_0", None),  # Inductor sorts them
        ("cpp_fused_frobnicate_0", None),
        ("cpp_fused_0", None),
        ("cpp_CppMicroGemmFP32Vec_0", None),
        ("triton_poi_fused_add_0", None),
    ],
)
def test_a_kernels_name_is_read_where_it_can_be_read_in_one_way(
    kernel: str, operators: str | None
) -> None:
    assert source_operators(kernel) == operators


def test_any_operators_joined_as_inductor_does_are_read_back_or_not_at_all() -> None:
    names = ["add", "mul", "gelu", "native_layer_norm", "_softmax", "mean", "rsqrt", "view", "t"]
    draw = random.Random(0)
    read = 0
    for _ in range(200):
        chosen = sorted(draw.sample(names, draw.randint(1, 6)))
        found = source_operators(f"cpp_fused_{'_'.join(chosen)}_{draw.randint(0, 99)}")
        assert found in (None, ", ".join(f"aten.{name}" for name in chosen))
        read += found is not None
    assert read == 200


class Block(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.project, self.act = nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.project(self.norm(x))) + x


@pytest.mark.slow
def test_a_compiled_model_shows_its_kernels_and_whose_parameters_they_read(
    compiler: Callable[[Any], Any],
) -> None:
    plain, x = Block().eval(), torch.randn(4, 64)
    with torch.no_grad():
        model = compiler(plain)
        model(x)
        trace = xsp.measure(model, x, levels=2, runs=5, budget=2)
        assert torch.allclose(model(x), plain(x), atol=1e-5)
    trace.check()
    spans = trace.spans.unnest("attributes")
    kernels = spans.filter(spans["name"].str.starts_with("cpp_fused"))
    assert kernels.select("kind", "source_ops", "parameters_of").rows() == [
        ("op", "aten.native_layer_norm", ["_orig_mod.norm"]),
        ("op", "aten.add, aten.gelu", None),
    ]
    assert kernels["latency_ns"].null_count() == 0
    product = spans.filter(name="aten::addmm")
    assert product["parameters_of"].to_list() == [["_orig_mod.project"]]


@pytest.mark.slow
def test_kernels_of_a_compiled_training_step_are_seen_forward_and_backward(
    compiler: Callable[[Any], Any],
) -> None:
    model, x = Block(), torch.randn(4, 64)
    compiled = compiler(model)

    def step() -> None:
        compiled(x).sum().backward()

    step()
    rows = operator_rows(recorded(step))
    kernels = rows.filter(rows["name"].str.starts_with("cpp_fused"))
    assert {None, "backward"} <= set(kernels["attr.phase"])
    assert kernels["attr.source_ops"].str.contains("gelu_backward").any()
