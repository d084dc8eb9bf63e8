from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest

import xsp
from xsp.analyses import scheduling
from xsp.clock import SystemClock
from xsp.level import Kind
from xsp.provider import Records, Request
from xsp.xplane import Instruction, Module, inputs_that_ran, operands_of
from xsp_levels.framework.jax.provider import Jax

FRAMEWORK = Request(frozenset({Kind.REGION, Kind.LAYER, Kind.OP}))


@pytest.fixture(scope="module")
def net() -> Any:
    @jax.jit  # type: ignore[untyped-decorator]
    def net(x: Any) -> Any:
        with jax.named_scope("encoder"):
            hidden = jnp.sin(x @ x)
            with jax.named_scope("gate"):
                hidden = hidden * jnp.cumsum(hidden, axis=0)
        with jax.named_scope("decoder"):
            return hidden @ x

    return net


@pytest.fixture(scope="module")
def batch() -> Any:
    return jnp.asarray(np.random.default_rng(0).random((64, 64), dtype=np.float32))


@pytest.fixture(scope="module")
def recorded(net: Any, batch: Any) -> tuple[Records, tuple[int, int]]:
    """Return the records of three calls, and the time in which they were made."""
    provider, clock = Jax(), SystemClock()
    net(batch).block_until_ready()
    provider.start(clock, FRAMEWORK)
    begin = clock.now()
    for _ in range(3):
        net(batch).block_until_ready()
    end = clock.now()
    return provider.stop(), (begin, end)


def test_operators_lie_in_the_scopes_that_they_were_written_in(
    recorded: tuple[Records, tuple[int, int]],
) -> None:
    rows = Jax().spans(recorded[0])
    layers = rows.filter(pl.col("kind") == "layer")
    assert layers["name"].value_counts().sort("name").rows() == [
        ("decoder", 3),
        ("encoder", 3),
        ("gate", 3),
        ("net", 3),
    ]
    parents = dict(layers.select("id", "name").rows())
    inside = {(parents.get(row["parent_id"]), row["name"]) for row in layers.to_dicts()}
    assert inside == {(None, "net"), ("net", "encoder"), ("net", "decoder"), ("encoder", "gate")}
    ops = rows.filter(pl.col("kind") == "op")
    assert set(ops["parent_id"]) <= set(layers["id"])
    assert set(rows["attr.framework"]) == {"jax"}


def test_a_recording_that_is_cut_short_has_fewer_rows_or_none(
    recorded: tuple[Records, tuple[int, int]],
) -> None:
    from dataclasses import replace  # noqa: PLC0415

    whole = recorded[0].data
    for size in (0, 10, len(whole.operators.space) // 2):
        space = whole.operators.space[:size]
        cut = Records(replace(whole, operators=replace(whole.operators, space=space)))
        assert Jax().spans(cut).height <= Jax().spans(recorded[0]).height


def test_a_damaged_program_is_named_and_not_asked_for_again(
    net: Any, batch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def damaged(proto: bytes) -> None:
        asked.append(proto)
        raise ValueError("cut short")

    monkeypatch.setattr("xsp_levels.framework.jax.profiler.session.read_module", damaged)
    provider = Jax()
    for _ in range(2):
        provider.start(SystemClock(), FRAMEWORK)
        net(batch).block_until_ready()
        records = provider.stop()
        [warning] = records.warnings
        assert "the layers of jit_net are missing" in warning
        assert provider.spans(records).filter(pl.col("kind") == "layer")["name"].to_list() == [
            "net"
        ]
    assert len(asked) == 1


def test_a_measured_function_has_layers_and_operators(net: Any, batch: Any) -> None:
    trace = xsp.measure(net, batch, levels=2, runs=2, budget=0.5, progress=False)
    trace.check()
    names = set(trace.spans["name"])
    assert {"predict", "net", "encoder", "gate", "decoder"} <= names


def test_an_evaluation_lasts_until_its_outputs_are_ready() -> None:
    slow = jax.jit(lambda x: jnp.linalg.inv(x @ x + jnp.eye(300)))
    x = jnp.asarray(np.random.default_rng(0).random((300, 300), dtype=np.float32))
    trace = xsp.measure(lambda: slow(x), levels=2, runs=3, budget=1, progress=False)
    run = trace.typical_runs.filter(pl.col("pass") == "op")
    assert run["parent_id"].is_null().sum() == 1
    ends = run.filter(pl.col("kind") == "op")["end_ns"]
    assert len(ends) > 0
    assert run.row(0, named=True)["end_ns"] >= ends.max()


def test_a_running_profiler_of_jax_is_left_alone(net: Any, batch: Any, tmp_path: Path) -> None:
    provider = Jax()
    net(batch).block_until_ready()  # compiling is a span whoever records
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # it hooks into each thread of the process
    jax.profiler.start_trace(str(tmp_path), profiler_options=options)
    try:
        provider.start(SystemClock(), FRAMEWORK)
        net(batch).block_until_ready()
        records = provider.stop()
    finally:
        jax.profiler.stop_trace()
    assert "already running" in records.warnings[0]
    assert provider.spans(records).is_empty()
    assert list(tmp_path.rglob("*.xplane.pb"))


def test_compiling_within_a_visit_is_a_span() -> None:
    provider = Jax()
    provider.start(SystemClock(), Request(frozenset({Kind.REGION})))
    jax.jit(lambda x: jnp.cos(x) * 3)(jnp.ones(7))
    rows = provider.spans(provider.stop())
    names = set(rows["name"])
    assert {"compile <lambda>: trace", "compile <lambda>: XLA compile"} <= names


def test_an_array_that_was_given_away_is_told_when_the_call_raises() -> None:
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    with pytest.raises(Exception, match=r"deleted|Invalid buffer") as raised:
        xsp.measure(step, jnp.arange(4.0), levels=1, runs=2, progress=False)
    assert "setup=" in raised.value.__notes__[0]
    xsp.measure(step, setup=lambda: (jnp.arange(4.0),), levels=1, runs=2, progress=False)


CODE = """
import sys
from xsp.clock import SystemClock
from xsp.level import Kind
from xsp.provider import Request
from xsp_levels.framework.jax.provider import Jax
import xsp

provider = Jax()
provider.start(SystemClock(), Request(frozenset({Kind.REGION, Kind.LAYER, Kind.OP})))
assert provider.spans(provider.stop()).is_empty()
provider.synchronize()
assert provider.model_call(print, (), {}) is None
assert "jax" not in sys.modules

with xsp.profile(levels="model", repeat=False) as prof:
    import jax, jax.numpy as jnp
    f = jax.jit(lambda x: x + 1)
    for _ in range(3):
        f(jnp.ones(3))
print(list(prof.groups), prof.trace.name)
assert not [finder for finder in sys.meta_path if "xsp" in type(finder).__module__]
"""


def test_a_program_that_imports_jax_in_the_block_is_watched_and_others_never_import_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "<lambda> 3" in done.stdout


def test_operators_tell_whose_results_they_take(recorded: tuple[Records, tuple[int, int]]) -> None:
    ops = Jax().spans(recorded[0]).filter(pl.col("kind") == "op")
    found = dict(ops.select("attr.hlo_op", "attr.inputs").iter_rows())
    taken = {each for sources in found.values() for each in sources}
    assert taken <= found.keys()
    assert [] in found.values()  # the first product takes what it is given alone
    (last,) = found.keys() - taken
    way, rest = {last}, [last]
    while rest:
        rest += (more := set(found[rest.pop()]) - way)
        way |= more
    assert way == found.keys()


def test_what_a_call_takes_is_what_its_computation_takes() -> None:
    def instruction(name: str, opcode: str, operands: tuple[int, ...] = (), **more: Any) -> Any:
        return Instruction(name, opcode, "", (), operands, more.get("called", ()), 0,
                           more.get("parameter", 0))  # fmt: skip

    inner = {10: instruction("p", "parameter"), 11: instruction("dot", "dot", (10,))}
    outer = {
        1: instruction("sine", "sine"),
        2: instruction("call", "call", (1,), called=(7,)),
        3: instruction("tanh", "tanh", (2,)),
    }
    graph = operands_of(Module("jit_f", {7: inner, 8: outer}, 8, {}))
    assert inputs_that_ran(graph, {"sine", "dot", "tanh"}) == {
        "dot": ["sine"],
        "sine": [],
        "tanh": ["dot"],
    }


def test_a_file_of_the_profiler_tells_the_inputs_of_operators_as_well(
    net: Any, batch: Any, tmp_path: Path
) -> None:
    net(batch).block_until_ready()
    with jax.profiler.trace(str(tmp_path)):
        net(batch).block_until_ready()
    (file,) = tmp_path.rglob("*.xplane.pb")
    table = scheduling(xsp.load(file))
    assert table.height > 2
    assert (table["wait_ns"] >= 0).all()
    spans = xsp.load(file).spans.unnest("attributes").filter(pl.col("inputs").is_not_null())
    assert set(spans["inputs"].explode().drop_nulls()) <= set(spans["hlo_op"])
    assert spans["inputs"].list.len().sum() > 0
