"""Parameters of one storage count once, work once per call, as PyTorch itself counts them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import polars as pl
import pytest

import xsp
from xsp.analyses import layer_kernel_metrics, layer_memory, model_information, model_roofline
from xsp.answer.analyses.tree import Tree
from xsp.answer.analyses.work import work_of
from xsp.answer.analyses.work.formula import FORMULAS
from xsp.answer.analyses.work.operator_kind import ARITHMETIC
from xsp.clock import SystemClock
from xsp_levels.framework.torch.module.layer import LayerRecorder
from xsp_levels.framework.torch.module.row import layer_rows

torch: Any = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
counter: Any = pytest.importorskip("torch.utils.flop_counter")
nn: Any = torch.nn


class Thrice(nn.Module):  # type: ignore[misc]
    """One layer under four names, called three times."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = self.first
        self.more = nn.ModuleDict({"x": self.first, "y": self.first})

    def forward(self, x: Any) -> Any:
        return self.first(self.second(self.more["y"](x)))


class Tied(nn.Module):  # type: ignore[misc]
    """A language model's ends, which share one storage in one of several ways."""

    def __init__(self, tie: Callable[[Any], Any]) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.head = nn.Linear(8, 50, bias=False)
        self.head.weight = tie(self.embed.weight)

    def forward(self, ids: Any) -> Any:
        return self.head(self.embed(ids))


class Empty(nn.Module):  # type: ignore[misc]
    """A module that holds nothing."""

    def forward(self, x: Any) -> Any:
        return x * 2


def rows(model: Any, x: Any) -> pl.DataFrame:
    recorder = LayerRecorder()
    recorder.start(SystemClock())
    with torch.no_grad():
        model(x)
    return layer_rows(recorder.stop())


def normed() -> Any:
    """Return layers whose weights PyTorch computes from others, and one that has no size yet."""
    parametrizations = nn.utils.parametrizations
    layers = (nn.LazyLinear(8), parametrizations.weight_norm(nn.Linear(8, 8)))
    return nn.Sequential(*layers, parametrizations.orthogonal(nn.Linear(8, 8)), Empty())


TIES: dict[str, Callable[[Any], Any]] = {
    "same": lambda weight: weight,
    "view": lambda weight: nn.Parameter(weight.data),
}
IDS = torch.arange(6).reshape(1, 6)
MODELS: dict[str, tuple[Callable[[], Any], Any]] = {
    "thrice": (Thrice, torch.ones(2, 8)),
    "normed": (normed, torch.ones(2, 8)),
    "empty": (lambda: nn.Sequential(Empty()), torch.ones(2, 8)),
    "lstm": (lambda: nn.LSTM(8, 8, 2), torch.ones(3, 2, 8)),
    **{name: (partial(Tied, tie), IDS) for name, tie in TIES.items()},
}


def parameters(model: Any) -> int:
    """Return the bytes of distinct parameters, of those in one place once."""
    sizes = {(p.data_ptr(), p.shape): p.nbytes for p in model.parameters()}
    return sum(sizes.values())


@pytest.mark.parametrize("name", MODELS)
def test_parameters_count_once(name: str) -> None:
    make, x = MODELS[name]
    torch.manual_seed(0)
    model = make()
    found = rows(model, x)
    assert found["attr.parameter_bytes"][0] == parameters(model)
    assert found["attr.shared_parameter_bytes"][0] == 0


def test_expanded_and_overlapping_tensors_are_as_large_as_their_storage() -> None:
    model = nn.Linear(4, 4, bias=False)
    model.register_parameter("part", nn.Parameter(model.weight.data[:2]))
    model.register_buffer("wide", torch.zeros(1).expand(1000))
    model.part.requires_grad_(requires_grad=False)
    (found,) = rows(model, torch.ones(1, 4)).to_dicts()
    assert (found["attr.parameter_bytes"], found["attr.buffer_bytes"]) == (4 * 16, 4)
    assert found["attr.frozen_parameter_bytes"] == 4 * 8


custom_op: Any = torch.library.custom_op


@custom_op("xsp_counting::known", mutates_args=())  # type: ignore[untyped-decorator]
def known(x: torch.Tensor, times: int = 3) -> torch.Tensor:
    """Multiply by itself, in operators that PyTorch knows; the registered formula counts more."""
    return (x @ x) * times


@known.register_fake  # type: ignore[untyped-decorator]
def _(x: Any, times: int = 3) -> Any:
    return x.new_empty(x.shape)


@custom_op("xsp_counting::unknown", mutates_args=())  # type: ignore[untyped-decorator]
def unknown(x: torch.Tensor) -> torch.Tensor:
    """Compute where nobody sees it."""
    return torch.from_numpy(x.numpy() * 2)


@custom_op("xsp_counting::broken", mutates_args=())  # type: ignore[untyped-decorator]
def broken(x: torch.Tensor) -> torch.Tensor:
    """Compute what a wrong formula does not know."""
    return torch.from_numpy(x.numpy() * 2)


@counter.register_flop_formula(torch.ops.xsp_counting.known)  # type: ignore[untyped-decorator]
def known_flops(x: Any, times: int, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    return 1000 * times * int(out_shape[0])


@counter.register_flop_formula(torch.ops.xsp_counting.broken)  # type: ignore[untyped-decorator]
def broken_flops(*args: Any, **kwargs: Any) -> int:
    raise KeyError("no such size")


class Custom(nn.Module):  # type: ignore[misc]
    """Tied ends, a layer used three times, and operators of the user's."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = Tied(TIES["same"])
        self.shared = Thrice()

    def forward(self, ids: Any) -> Any:
        found = self.shared(self.ends(ids)[0, :, :8])
        square = torch.ops.xsp_counting.known(found[:4, :4] @ found[:4, :4], 5)
        return torch.ops.xsp_counting.broken(torch.ops.xsp_counting.unknown(square))


@pytest.fixture(scope="module")
def custom() -> tuple[Any, Any]:
    model = Custom().eval()
    with torch.no_grad():
        return model, xsp.measure(model, IDS, levels=2, runs=2)


def test_totals_of_a_trace_count_tied_parameters_once(custom: Any) -> None:
    model, trace = custom
    size = parameters(model)
    assert model_information(trace)["parameter_bytes"].to_list() == [size]
    table = layer_memory(trace)
    assert table["parameter_bytes"].sum() == size
    head = table.filter(layer="ends.head").row(0, named=True)
    assert (head["parameter_bytes"], head["shared_parameter_bytes"]) == (0, 4 * 50 * 8)


def test_formulas_of_the_user_count_and_unknown_operators_are_told(custom: Any) -> None:
    trace = custom[1]
    calls = trace.spans.with_columns(work_of(Tree.of(trace))).filter(kind="op")
    flops = dict(
        calls.filter(pl.col("name").str.starts_with("xsp_")).select("name", "flops").rows()
    )
    assert flops == {
        "xsp_counting::known": 1000 * 5 * 4,
        "xsp_counting::unknown": None,
        "xsp_counting::broken": None,
    }
    inside = calls.filter(pl.col("path").str.contains("xsp_counting::known/"))
    assert inside["flops"].sum() == 0  # the formula is of the whole operator
    (row,) = model_roofline(trace).to_dicts()
    linear = 2 * 6 * 8 * 50 + 3 * 2 * 6 * 8 * 8 + 2 * 4 * 4 * 4
    assert row["flops"] == linear + 20_000
    assert row["unknown_operators"] == 2
    assert 0 < row["known_pct"] < 100
    layers = layer_kernel_metrics(trace)
    assert layers.filter(layer="shared.first")["flops"].to_list() == [2 * 6 * 8 * 8] * 3
    assert layers["unknown_operators"].sum() == 2
    (warning,) = [w.message for w in trace.warnings if "formula" in w.message]
    assert "xsp_counting::broken" in warning
    assert "no such size" in warning


def test_pytorch_has_no_formula_that_xsp_lacks() -> None:
    own = {
        operator._qualified_op_name
        for operator, formula in counter.flop_registry.items()
        if formula.__module__ == counter.__name__ and hasattr(operator, "_qualified_op_name")
    }
    assert own <= set(FORMULAS)  # flex_attention is no operator of the dispatcher


def core(trace: Any) -> int:
    """Return the operations that PyTorch counts, too: not sums and products of elements."""
    calls = trace.spans.with_columns(work_of(Tree.of(trace))).filter(kind="op")
    plain = calls.filter(~pl.col("name").str.strip_suffix("_").is_in(list(ARITHMETIC)))
    return int(plain["flops"].sum())


def convolutions() -> Any:
    """Return convolutions of one, two and three dimensions, grouped and transposed."""
    return nn.ModuleList(
        [
            nn.Conv1d(2, 4, 3, dilation=2),
            nn.Conv2d(4, 4, 3, groups=2),
            nn.Conv3d(2, 2, 3),
            nn.ConvTranspose1d(2, 4, 3, stride=2),
            nn.ConvTranspose2d(4, 2, 3),
            nn.EmbeddingBag(9, 4),
        ]
    )


def test_layers_and_attention_count_as_pytorch_does_and_recurrent_ones_besides() -> None:
    lstm, tokens = nn.LSTM(8, 16, 2), torch.rand(3, 2, 8)
    matrices = sum(p.numel() for p in lstm.parameters() if p.dim() == 2)
    layers = convolutions()
    sizes = ((2, 2, 9), (2, 4, 9, 9), (1, 2, 6, 6, 6), (2, 2, 9), (2, 4, 5, 5))
    given = [*(torch.rand(size) for size in sizes), torch.arange(6).reshape(2, 3)]
    q, k, v = (torch.rand(2, 4, 6, 8) for _ in range(3))
    functional = nn.functional

    def forward() -> None:
        lstm(tokens)
        for layer, x in zip(layers, given, strict=True):
            layer(x)
        functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        torch.einsum("bhij,bhjd->bhid", torch.einsum("bhid,bhjd->bhij", q, k).softmax(-1), v)
        torch.baddbmm(torch.zeros(8, 6, 6), q.flatten(0, 1), k.flatten(0, 1).mT)

    with torch.no_grad():
        with counter.FlopCounterMode(display=False) as counted:
            forward()
        trace = xsp.measure(forward, levels=2, runs=2)
    # PyTorch's counter sees oneDNN's LSTM as one operator without a formula.
    assert core(trace) == counted.get_total_flops() + 2 * 3 * 2 * matrices


def test_gradients_count_as_pytorch_does_also_where_the_input_needs_none() -> None:
    layer = nn.ConvTranspose1d(4, 6, 3, stride=2)
    model = nn.Sequential(nn.Conv1d(2, 4, 3), layer, nn.Flatten(), nn.Linear(90, 5))
    x = torch.rand(2, 2, 9)

    def step() -> None:
        layer(x.repeat(1, 2, 1)).sum().backward()
        model(x).sum().backward()

    with counter.FlopCounterMode(display=False) as counted:
        step()
    assert core(xsp.measure(step, levels=2, runs=2)) == counted.get_total_flops()


LINE = {"name": "forward", "filename": "/home/me/model.py"}


def entry(at: int, size: int) -> dict[str, Any]:
    frames = [{**LINE, "line": at}]
    return {"action": "alloc", "time_us": at, "addr": at, "size": size, "frames": frames}


FULL = {"action": "oom", "time_us": 9, "device_free": 0, "size": 1 << 40, "frames": []}


@pytest.mark.parametrize("full", [False, True])
def test_a_block_tells_who_owns_gpu_memory_at_its_peak(
    full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = [entry(at, at << 20) for at in range(1, 6)] + [FULL] * full
    snapshot = {"segments": [], "device_traces": [history]}
    monkeypatch.setattr(torch._C, "_cuda_isHistoryEnabled", lambda: True, raising=False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: snapshot)
    model = nn.Linear(4, 4).eval()
    prof = xsp.profile(levels=1, repeat=False)

    def program() -> None:
        with torch.no_grad(), prof:
            model(torch.ones(1, 4))
            if full:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    if full:
        with pytest.raises(torch.cuda.OutOfMemoryError):
            program()
    else:
        program()
    (told,) = [w.message for w in prof.trace.warnings if "GPU memory was 15.0 MiB" in w.message]
    largest = ", ".join(f"{at}.0 MiB of forward (model.py:{at})" for at in (5, 4, 3))
    assert f"at its peak: {largest}" in told
    assert ("1 allocation failed because GPU memory was full" in told) == full
