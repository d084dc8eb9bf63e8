from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from xsp_levels.framework.torch.program.watcher import MOVE, Moves

# A move to the device `meta` is one without a GPU: from one device to another, by the same calls.


@pytest.fixture
def said() -> Iterator[list[str]]:
    told = list[str]()
    moves = Moves(lambda name, *_: told.append(name))
    yield told
    moves.close()
    assert not {"to", "cuda"} & set(vars(torch.Tensor))


def test_a_tensor_moved_to_another_device_is_told(said: list[str]) -> None:
    assert torch.ones(2).to("meta").device.type == "meta"
    assert torch.nn.Linear(2, 2).to("meta").weight.is_meta
    assert said == [MOVE] * 3


def test_what_stays_where_it_is_is_not_told(said: list[str]) -> None:
    x = torch.ones(2)
    assert x.to("cpu") is x
    assert x.to(torch.float64).dtype is torch.float64
    assert x.to(torch.float64, copy=True).sum() == 2
    assert not said


def test_compiled_functions_move_tensors_in_one_graph(said: list[str]) -> None:
    def move(x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.float64).to("meta") + 1

    compiled = torch.compile(move, backend="eager", fullgraph=True)
    assert compiled(torch.ones(2)).is_meta
    assert said == [MOVE], "of the call, and none of compiling"
    torch._dynamo.reset()
