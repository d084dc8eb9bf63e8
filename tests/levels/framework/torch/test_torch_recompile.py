"""Compiling as parts of a program: what was compiled, how often, and why again."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import xsp
from xsp.analyses import advice


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if importlib.util.find_spec("tqdm") is not None:  # its bar would start a thread for good
        monkeypatch.setattr("tqdm.std.tqdm.monitor_interval", 0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Net(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x).relu()


def profiled() -> xsp.profile:
    return xsp.profile(levels="layers", repeat=False, progress=False)


def rows(trace: xsp.Trace, name: str) -> list[dict[str, Any]]:
    """Return the spans whose names begin so, in the order of time."""
    trace.check()
    return [r for r in trace.spans.iter_rows(named=True) if r["name"].startswith(name)]


def around(trace: xsp.Trace, row: dict[str, Any]) -> set[str]:
    """Return the names of all spans around one."""
    spans = {each["span_id"]: each for each in trace.spans.iter_rows(named=True)}
    found = set()
    while row["parent_id"] is not None:
        row = spans[row["parent_id"]]
        found.add(row["name"])
    return found


def test_compilations_are_parts_and_a_step_that_compiled_again_says_why() -> None:
    compiled = torch.compile(Net(), backend="eager", dynamic=False)
    with torch.no_grad(), profiled() as prof:
        for size in (2, 2, 2, 3, 3, 3):
            compiled(torch.ones(size, 4))
    trace = prof.trace
    [first], [again] = rows(trace, "compile "), rows(trace, "recompile ")
    assert first["name"] == "compile Net.forward"
    assert again["name"] == "recompile Net.forward"
    assert first["attributes"].get("recompile_reason") is None
    reason = again["attributes"]["recompile_reason"]
    assert reason == "tensor 'x' size mismatch at index 0. expected 2, actual 3"
    [step] = rows(trace, "recompiled")
    assert step["name"] == "recompiled call of Net 3×4"
    assert step["name"] in around(trace, again)
    assert step["attributes"]["recompiled"]
    assert "first call of Net 2×4" in around(trace, first)
    # Means leave out the step that compiled again.
    [group] = [g for g in trace.metadata["groups"] if g["name"] == "Net 3×4"]
    [others] = rows(trace, "Net 3×4")
    assert (group["calls"], others["attributes"]["calls"]) == (3, 2)
    assert group["most_ns"] == others["attributes"]["most_ns"]


def test_backward_passes_that_are_compiled_later_are_parts_of_the_backward_pass() -> None:
    model = Net()
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with profiled() as prof:
        for _ in range(3):
            compiled(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    [backward] = rows(prof.trace, "compile backward")
    assert "backward" in around(prof.trace, backward)
    assert not rows(prof.trace, "recompile ")


def test_functions_that_compile_outside_of_a_model_are_parts_of_the_block() -> None:
    @torch.compile(backend="eager", dynamic=False)  # type: ignore[untyped-decorator]
    def scaled(x: torch.Tensor, factor: int) -> torch.Tensor:
        return x * factor

    with profiled() as prof, xsp.span("scaling"):
        for factor in (2, 3, 4):
            assert scaled(torch.ones(2), factor).tolist() == [factor] * 2
    assert [row["name"] for row in rows(prof.trace, "compile")] == ["compile scaled"]
    again = rows(prof.trace, "recompile scaled")
    assert sum(row["attributes"]["calls"] or 1 for row in again) == 2
    assert "scaling" in around(prof.trace, again[0])
    assert "2" in again[0]["attributes"]["recompile_reason"]


def test_code_that_cannot_be_compiled_raises_as_before_and_the_part_ends() -> None:
    def broken(graph: Any, inputs: Any) -> Any:
        raise ValueError("no such backend")

    compiled = torch.compile(Net(), backend=broken)
    with torch.no_grad(), profiled() as prof:
        with pytest.raises(Exception, match="no such backend"):
            compiled(torch.ones(2, 4))
        with xsp.span("after"):
            Net()(torch.ones(2, 4))
    [part] = rows(prof.trace, "compile Net.forward")
    [after] = rows(prof.trace, "after")
    assert around(prof.trace, after) == {"block"}
    assert part["latency_ns"] > 0


def test_pytorch_has_no_callback_of_ours_after_a_block() -> None:
    compiled = torch.compile(Net(), backend="eager")
    handler = torch._dynamo.callback.callback_handler
    with torch.no_grad(), profiled():
        compiled(torch.ones(2, 4))
        assert handler.start_callbacks
    assert not handler.start_callbacks
    assert not handler.end_callbacks


def test_advice_says_what_changed_if_much_time_went_to_compiling_again() -> None:
    compiled = torch.compile(Net(), backend="eager", dynamic=False)
    with torch.no_grad():
        compiled(torch.ones(2, 4))
        with profiled() as prof:
            for size in range(3, 7):
                compiled(torch.ones(size, 4))
    [found] = advice(prof.trace).filter(rule="recompilations").iter_rows(named=True)
    assert "4 recompilations took" in found["evidence"]
    assert "size mismatch at index 0. expected 2, actual 3" in found["evidence"]
    assert "dynamic=True" in found["advice"]
