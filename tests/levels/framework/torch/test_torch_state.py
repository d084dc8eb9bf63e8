from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from torch import nn  # noqa: E402

import xsp  # noqa: E402
from xsp.provider import Role  # noqa: E402
from xsp_levels.framework.torch.program.state import keep, role  # noqa: E402
from xsp_levels.framework.torch.provider import Torch  # noqa: E402

ROOM = 1 << 20


@pytest.fixture(autouse=True)
def few_random_numbers() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def codes(trace: xsp.Trace) -> set[str]:
    return {problem.code for problem in trace.problems}


def gpt2() -> Any:
    ids = dict.fromkeys(("bos_token_id", "eos_token_id"), 0)
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=16, vocab_size=50, n_positions=32, **ids
    )
    return transformers.GPT2LMHeadModel(config).eval()


def llama() -> Any:
    config = transformers.LlamaConfig(
        num_hidden_layers=2,
        num_attention_heads=2,
        hidden_size=16,
        intermediate_size=16,
        vocab_size=50,
        max_position_embeddings=32,
    )
    return transformers.LlamaForCausalLM(config).eval()


def filled(model: Any, kind: str, tokens: int = 16) -> Any:
    """Return a cache of keys and values after `tokens` tokens."""
    cache = (
        transformers.DynamicCache()
        if kind == "dynamic"
        else transformers.StaticCache(config=model.config, max_cache_len=24)
    )
    with torch.no_grad():
        model(torch.arange(tokens)[None], **given(model, cache))
    return cache


def given(model: Any, cache: Any) -> dict[str, Any]:
    """Return the argument that hands a cache over, by its name in this version of transformers."""
    names = inspect.signature(model.forward).parameters
    return {"cache" if "cache" in names else "past_key_values": cache}


def contents(cache: Any) -> list[Any]:
    return [tensor.clone() for layer in cache.layers for tensor in (layer.keys, layer.values)]


def equal(one: list[Any], other: list[Any]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


NEXT = torch.tensor([[3]])


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("make", [gpt2, llama])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_decode_step_is_measured_at_its_own_length(
    make: Callable[[], Any], kind: str, mode: Callable[[], Any]
) -> None:
    model = make()
    cache, lengths = filled(model, kind), []
    before = contents(cache)
    model.register_forward_pre_hook(lambda *_: lengths.append(int(cache.get_seq_length())))
    with mode():
        trace = xsp.measure(model, NEXT, **given(model, cache), levels=2, runs=3)
    trace.check()
    assert len(lengths) > 10
    assert set(lengths) == {16}
    assert int(cache.get_seq_length()) == 16
    assert equal(contents(cache), before)
    assert not codes(trace) & {"input-written", "input-unread", "orphans", "unmatched"}


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_cache_has_one_more_entry_after_a_block_with_one_decode_step(
    kind: str, mode: Callable[[], Any]
) -> None:
    model = gpt2()
    cache, plain = filled(model, kind), filled(model, kind)
    with mode(), xsp.profile(levels=2, runs=3) as prof:
        model(NEXT, **given(model, cache))
    with mode():
        model(NEXT, **given(model, plain))
    assert int(cache.get_seq_length()) == 17
    assert equal(contents(cache), contents(plain))
    (message,) = [p.message for p in prof.trace.problems if p.code == "replayed-as-left"]
    (name,) = given(model, cache)
    assert f"GPT2LMHeadModel changes its input or itself ({name}." in message
    assert {rung["rung"]: rung["runs"] for rung in prof.trace.metadata["rungs"]}["op"] >= 3


class Selective(nn.Module):  # type: ignore[misc]
    """A state-space step: the state is an argument, a user's object with slots and a list."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.rand(8)), nn.Linear(4, 8)

    def forward(self, x: Any, state: Any) -> Any:
        for ssm, conv in zip(state.ssm.values(), state.conv, strict=True):
            conv.copy_(torch.roll(conv, -1, dims=-1))
            conv[..., -1] = x
            ssm.mul_(torch.exp(-self.a)).add_(self.b(conv.mean(-1)))
        state.offset += 1
        return sum(state.ssm.values())


class States:
    __slots__ = ("conv", "offset", "ssm")

    def __init__(self) -> None:
        self.conv = [torch.zeros(4, 3) for _ in range(2)]
        self.ssm = {layer: torch.zeros(8) for layer in range(2)}
        self.offset = 5


def test_a_state_space_model_finds_the_states_of_its_first_call() -> None:
    model, states, offsets = Selective().eval(), States(), []
    model.register_forward_pre_hook(lambda *_: offsets.append(states.offset))
    with torch.no_grad():
        trace = xsp.measure(model, torch.ones(4), states, levels=2, runs=3)
    assert set(offsets) == {5}
    assert states.offset == 5
    assert not any(tensor.any() for tensor in (*states.conv, *states.ssm.values()))
    assert "input-written" not in codes(trace)


class Remembers(nn.Module):  # type: ignore[misc]
    """A recurrent network with a hidden state of its own; one in place, one anew each time."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 4)
        self.h, self.last = torch.zeros(1, 4), None
        self.log: list[Any] = []

    def forward(self, x: Any, h: Any) -> Any:
        self.last = self.cell(x, h)
        self.h = self.h + self.last
        self.log.append(self.last)
        with torch.no_grad():
            h.copy_(self.last)
        return self.last


def test_hidden_states_are_put_back_whether_given_or_the_modules_own() -> None:
    model, x, h, found = Remembers(), torch.ones(1, 4), torch.zeros(1, 4), []
    own = model.h
    model.register_forward_pre_hook(lambda m, _: found.append((float(h.sum()), len(m.log))))
    xsp.measure(model, x, h, levels=2, runs=3)
    assert {given for given, _ in found} == {0.0}
    assert [log for _, log in found[:2]] == [0, 1]  # the second call shows what each one changes
    assert {log for _, log in found[2:]} == {0}
    assert not h.any()
    assert model.h is own
    assert (model.last, model.log) == (None, [])


def test_a_module_in_a_block_is_left_as_the_programs_last_call_left_it() -> None:
    model, h = Remembers().eval(), torch.zeros(1, 4)
    plain, plain_h = copy.deepcopy(model), h.clone()
    with torch.no_grad():
        plain(torch.ones(1, 4), plain_h)
        with xsp.profile(levels=2, runs=3) as prof:
            model(torch.ones(1, 4), h)
    assert "replayed-as-left" in codes(prof.trace)
    assert torch.equal(h, plain_h)
    assert torch.equal(model.h, plain.h)
    assert len(model.log) == 1


def test_batch_normalisation_in_training_mode_is_bit_equal_afterwards() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout())
    x, before = torch.randn(8, 4), copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    for function in (model, lambda x: model(x).sum()):
        xsp.measure(function, x, levels=2, runs=3)
        assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
        assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning", "ignore::DeprecationWarning")
def test_buffers_of_a_scripted_module_are_put_back() -> None:
    model = torch.jit.script(nn.BatchNorm1d(4).train())
    xsp.measure(model, torch.randn(8, 4), levels=1, runs=2)
    assert int(model.num_batches_tracked) == 0
    assert not model.running_mean.any()


def test_a_lazy_module_is_ready_afterwards_and_works() -> None:
    model = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())
    x = torch.randn(5, 2)
    xsp.measure(model, x, levels=1, runs=2)
    assert type(model[0]) is nn.Linear
    assert model(x).shape == (5, 3)


def test_a_call_that_trains_is_measured_and_said_to_train() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Any) -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    trace = xsp.measure(step, torch.ones(2, 4), levels=1, runs=3)
    (message,) = [p.message for p in trace.problems if p.code == "parameters-written"]
    assert "step trains" in message
    assert "input-written" not in codes(trace)


def test_gradients_of_arguments_and_parameters_are_as_before() -> None:
    model, x = nn.Linear(4, 4), torch.ones(2, 4, requires_grad=True)
    x.grad = torch.full((2, 4), 7.0)
    kept = x.grad

    def backward(x: Any) -> None:
        model(x).sum().backward()

    trace = xsp.measure(backward, x, levels=1, runs=3)
    assert x.grad is kept
    assert (kept == 7).all()
    assert model.weight.grad is None
    assert not codes(trace) & {"parameters-written", "input-written"}


def test_a_call_that_puts_its_input_into_a_graph_it_cannot_leave_is_made_once() -> None:
    leaf = torch.ones(3, requires_grad=True)
    x = leaf * 2
    trace = xsp.measure(lambda x: x.mul_(2), x, levels=1, runs=3)
    assert (x == 4).all()
    (message,) = [p.message for p in trace.problems if p.code == "input-written"]
    assert "argument 1, which has become part of a graph of gradients" in message


def test_arguments_that_never_change_are_copied_once_and_never_put_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copies: list[Any] = []
    put: list[Any] = []
    where = "xsp_levels.framework.torch.program.state"

    def copied(tensor: Any) -> Any:
        copies.append(tensor)
        return tensor.clone()

    monkeypatch.setattr(f"{where}._copy", copied)
    monkeypatch.setattr(f"{where}.KeptTensor.put_back", put.append)
    model = nn.Linear(4, 4).eval()
    with torch.no_grad():
        xsp.measure(model, torch.ones(2, 4), levels=2, runs=3)
    assert len(copies) == 1
    assert put == []


def tensor_of(make: str) -> Any:
    with torch.inference_mode(make == "inference"):
        x = torch.arange(6, dtype=torch.float32).reshape(2, 3)
        return {
            "transposed": x.T,
            "bool": x > 2,
            "half": x.bfloat16(),
            "complex": torch.complex(x, x).conj(),
            "negated": torch.complex(x, x).conj().imag,
            "empty": x[:0],
            "parameter": nn.Parameter(x),
            "scalar": x[1, 1],
            "nan": x / 0,
        }.get(make, x)


def write(x: Any, value: float) -> None:
    with torch.inference_mode(x.is_inference()), torch.no_grad():
        x.fill_(value)


@pytest.mark.parametrize(
    "make",
    ["plain", "inference", "transposed", "bool", "half", "complex", "negated", "scalar", "nan"],
)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
def test_any_tensor_is_noticed_and_put_back(make: str, mode: Callable[[], Any]) -> None:
    x = tensor_of(make)
    before = x.clone()
    with mode():
        kept = keep(x, ROOM)
        assert not kept.changed()
        write(x, 1)
        assert kept.changed()
        assert not kept.obstacle()
        kept.put_back()
        assert not kept.changed()
    assert torch.equal(torch.nan_to_num(x), torch.nan_to_num(before))


def test_a_write_that_pytorch_does_not_count_is_noticed() -> None:
    x = torch.zeros(3)
    kept = keep(x, ROOM)
    x.numpy()[0] = 1
    assert x._version == 0
    assert kept.changed()


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.resize_(5),
        lambda x: x.set_(torch.ones(7)),
        lambda x: setattr(x, "data", torch.ones(2)),
        lambda x: x.requires_grad_(),
        lambda x: x.mul_(torch.ones(3, requires_grad=True)),
    ],
)
def test_a_tensor_given_other_memory_or_a_graph_is_put_back(change: Callable[[Any], Any]) -> None:
    x = torch.zeros(3)
    view, kept = x[:], keep(x, ROOM)
    change(x)
    assert kept.changed()
    kept.put_back()
    assert not kept.changed()
    assert x.data_ptr() == view.data_ptr()
    assert x.tolist() == [0, 0, 0]
    assert not x.requires_grad
    assert x.grad_fn is None


def test_what_cannot_be_copied_says_so() -> None:
    sparse, meta = torch.eye(2).to_sparse(), torch.ones(2, device="meta")
    assert "cannot be copied back" in keep(sparse, ROOM).obstacle()
    assert not keep(meta, ROOM).changed()
    large = keep(torch.zeros(1000), 3999)
    assert large.nbytes == 0
    assert "too many to keep a copy of" in large.obstacle()
    with torch.inference_mode():
        hidden = torch.eye(2).to_sparse()
    assert not keep(hidden, ROOM).changed()


def test_a_generator_draws_the_same_numbers_again() -> None:
    generator, drawn = torch.Generator().manual_seed(3), []

    def draw(generator: Any) -> None:
        drawn.append(float(torch.rand(1, generator=generator)))

    xsp.measure(draw, generator, levels=1, runs=3)
    assert len(set(drawn)) == 1
    assert float(torch.rand(1, generator=generator)) == drawn[0]


def test_classes_have_roles() -> None:
    class Mine(torch.utils.data.Dataset):  # type: ignore[misc,name-defined]
        pass

    assert role(nn.Parameter) is role(torch.Generator) is Role.VALUE
    assert role(nn.Linear) is Torch().role(nn.Sequential) is Role.MODEL
    assert role(torch.optim.SGD) is role(Mine) is role(torch.utils.data.DataLoader) is Role.CLOSED
    assert role(list) is role(transformers.DynamicCache) is None
