"""Parts of a trace side by side, on known answers and a small real program."""

from __future__ import annotations

import pytest
from samples import layer, op, pipeline, trace

import xsp
from xsp.analyses import side_by_side


def test_each_part_has_its_types_of_layers_and_what_lies_in_none() -> None:
    prefill = pipeline("prefill", layer("a", "Linear", own_ns=90), layer("b", "Linear", own_ns=10),
                       own_ns=5)  # fmt: skip
    decode = pipeline("decode", layer("a", "Linear", own_ns=20), op("aten::cat", own_ns=14),
                      own_ns=5)  # fmt: skip
    table = side_by_side(trace(pipeline("generate", prefill, decode, own_ns=60)))
    assert table.select("part", "type", "calls", "own_ns").rows() == [
        ("generate", None, 1, 60),
        ("prefill", "Linear", 2, 100),
        ("prefill", None, 1, 5),
        ("decode", "Linear", 1, 20),
        ("decode", None, 1, 19),
    ]
    assert table["trace_share_pct"].sum() == pytest.approx(100)
    assert table.filter(part="decode")["share_pct"].to_list() == pytest.approx(
        [100 * 20 / 39, 100 * 19 / 39]
    )
    assert table["call_ns"][1] == 50


def test_a_mark_within_a_model_is_no_part_of_the_program() -> None:
    inside = pipeline("my block", layer("fc", "Linear", own_ns=7), own_ns=1)
    table = side_by_side(trace(pipeline("predict", layer("net", "Net", inside, own_ns=2))))
    assert set(table["part"]) == {"predict"}


def test_parts_of_one_name_say_what_they_lie_in() -> None:
    steps = [
        pipeline(name, pipeline("forward", layer("fc", "Linear", own_ns=7))) for name in ("A", "B")
    ]
    table = side_by_side(trace(pipeline("train", *steps))).filter(type="Linear")
    assert table["part"].to_list() == ["A / forward", "B / forward"]


def test_forward_backward_and_optimizer_of_a_real_loop_are_parts() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with xsp.profile(levels=2, progress=False) as prof:
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.ones(3, 4)).sum().backward()
            optimizer.step()
    table = side_by_side(prof.trace)
    linear = table.filter(type="Linear")
    assert set(linear["phase"]) == {"forward", "backward"}
    # The first step is a part of its own where it is unlike the others, and its backward pass has
    # layers only if operators were recorded in it.
    assert linear.filter(phase="forward")["calls"].sum() == 6
    assert linear.filter(phase="backward")["calls"].sum() in (5, 6)
    assert table["part"].str.contains("optimizer step").any()
