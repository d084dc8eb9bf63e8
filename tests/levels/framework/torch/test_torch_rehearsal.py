"""Which calls of PyTorch's models a block repeats, and that rehearsing one changes nothing."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import xsp  # noqa: E402

X = torch.ones(1, 4)


@pytest.fixture(autouse=True)
def few_random_numbers() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def hindered(call: Callable[[], object]) -> list[str]:
    """Return why a block of one call did not repeat it."""
    with xsp.profile(levels=1, runs=2, progress=False) as prof:
        call()
    return [p.message for p in prof.trace.warnings if p.code == "not-repeated"]


class Remembers(nn.Module):  # type: ignore[misc]
    """Has a hidden state, a list of what it returned, and a buffer that no write of it counts."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("sum", torch.zeros(4))
        self.log: list[Any] = []
        self.writes = "h"

    def forward(self, x: Any, h: Any) -> Any:
        result = self.layer(x)
        if self.writes == "h":
            h.copy_(result)
        elif self.writes == "sum":
            self.sum.data[0] += 1
        elif self.writes == "log":
            self.log.append(result)
        return result


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("writes", ["h", "sum", "log"])
def test_a_call_that_changes_anything_is_not_repeated_and_is_made_once(
    writes: str, mode: Callable[[], Any]
) -> None:
    model = Remembers().eval()
    model.writes = writes
    with mode():
        h = torch.zeros(1, 4)
        plain, plain_h = copy.deepcopy(model), h.clone()
        plain(X, plain_h)
        [message] = hindered(lambda: model(X, h))
    assert {"h": "argument 2", "sum": "sum", "log": "log"}[writes] in message
    assert "setup=" in message
    assert "repeat=True" in message
    assert torch.equal(h, plain_h)
    assert torch.equal(model.sum, plain.sum)
    assert len(model.log) == len(plain.log)


@pytest.mark.parametrize("kind", ["DynamicCache", "StaticCache"])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_cache_has_one_more_entry_after_a_block_with_one_decode_step(
    kind: str, mode: Callable[[], Any]
) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        num_hidden_layers=1, num_attention_heads=2, hidden_size=16, intermediate_size=16,
        vocab_size=50, max_position_embeddings=32,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    size = {"config": config, "max_cache_len": 24} if kind == "StaticCache" else {}
    cache = getattr(transformers, kind)(**size)
    names = inspect.signature(model.forward).parameters  # which transformers 5.24 has renamed
    name = "cache" if "cache" in names else "past_key_values"
    with mode():
        model(torch.arange(16)[None], **{name: cache})
        [message] = hindered(lambda: model(torch.tensor([[3]]), **{name: cache}))
    assert f"{name}.layers.0.keys" in message
    assert int(cache.get_seq_length()) == 17


def test_random_numbers_go_on_as_if_nothing_had_been_rehearsed() -> None:
    class Draws(nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return x + torch.rand(4)

    def run() -> Any:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 4), Draws()).eval()
        torch.manual_seed(2)
        with torch.no_grad():
            said = hindered(lambda: model(X))
        return said, torch.rand(1)

    [message], after = run()
    torch.manual_seed(2)
    torch.rand(4)
    assert "random numbers" in message
    assert torch.equal(after, torch.rand(1))


@pytest.mark.parametrize("layer", [nn.Dropout(), nn.BatchNorm1d(4)])
def test_a_model_in_training_mode_is_not_rehearsed(layer: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 4), layer)
    before = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        [message] = hindered(lambda: model(torch.ones(3, 4)))
    assert f"{type(layer).__name__} changes with each call" in message
    assert int(model.state_dict().get("1.num_batches_tracked", 1)) == 1
    assert all(torch.equal(model.state_dict()[n], v) for n, v in before.items() if "0." in n)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda model: model,
        lambda model: torch.compile(model, backend="eager"),
        lambda model: torch.jit.trace(model, X),
    ],
    ids=["eager", "compiled", "traced"],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_call_that_changes_nothing_is_repeated(wrap: Callable[[Any], Any]) -> None:
    with torch.no_grad():
        model = wrap(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout()).eval())
        model(X)
        assert hindered(lambda: model(X)) == []
