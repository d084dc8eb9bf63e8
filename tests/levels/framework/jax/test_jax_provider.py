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
from xsp.clock import SystemClock
from xsp.level import Kind
from xsp.provider import Records, Request, Role, pack, unpack
from xsp_levels.framework.jax.provider import Jax

FRAMEWORK = Request(frozenset({Kind.PIPELINE, Kind.LAYER, Kind.OP}))


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


def test_times_are_on_the_clock_of_the_measurement(
    recorded: tuple[Records, tuple[int, int]],
) -> None:
    records, (begin, end) = recorded
    rows = Jax().spans(records)
    assert begin < min(rows["start_ns"].to_list())
    assert max(rows["end_ns"].to_list()) < end


def test_operators_say_what_they_are(recorded: tuple[Records, tuple[int, int]]) -> None:
    ops = Jax().spans(recorded[0]).filter(pl.col("kind") == "op")
    last = ops.filter(pl.col("attr.scope") == "net/decoder/dot_general").to_dicts()[0]
    assert last["attr.hlo_module"] == "jit_net"
    assert last["attr.output_shapes"] == [[64, 64]]
    assert last["attr.output_dtypes"] == ["float32"]
    assert last["attr.caller_file"] == __file__


def test_records_can_be_kept_in_a_file(recorded: tuple[Records, tuple[int, int]]) -> None:
    kept = unpack(Jax(), pack(Jax(), recorded[0]))
    assert Jax().spans(kept).equals(Jax().spans(recorded[0]))


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
        [problem] = records.problems
        assert problem.startswith("the layers of jit_net are missing")
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
    run = trace.typical_runs.filter(pl.col("rung") == "op")
    assert run["parent_id"].is_null().sum() == 1
    ends = run.filter(pl.col("kind") == "op")["end_ns"]
    assert len(ends) > 0
    assert run.row(0, named=True)["end_ns"] >= ends.max()


def test_arrays_that_are_given_away_are_put_back_before_each_evaluation() -> None:
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    x = jnp.arange(4.0)
    trace = xsp.measure(step, x, levels="model", runs=2, budget=0.3, progress=False)
    assert trace.metadata["rungs"][0]["runs"] > 1
    assert x.tolist() == [0, 1, 2, 3]


def test_a_call_that_gives_arrays_away_unseen_is_not_repeated() -> None:
    step = jax.jit(lambda x: x + 1, donate_argnums=0)

    def unseen(x: Any) -> Any:
        return step(x)

    trace = xsp.measure(unseen, jnp.arange(4.0), levels=1, runs=2, progress=False)
    [message] = [p["message"] for p in trace.metadata["problems"] if p["code"] == "input-written"]
    assert "donate_argnums" in message


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
    assert "running already" in records.problems[0]
    assert provider.spans(records).is_empty()
    assert list(tmp_path.rglob("*.xplane.pb"))


def test_compiling_within_a_visit_is_a_span() -> None:
    provider = Jax()
    provider.start(SystemClock(), Request(frozenset({Kind.PIPELINE})))
    jax.jit(lambda x: jnp.cos(x) * 3)(jnp.ones(7))
    rows = provider.spans(provider.stop())
    names = set(rows["name"])
    assert {"compile <lambda>: trace", "compile <lambda>: XLA compile"} <= names


def test_eager_operators_lie_in_no_layer(batch: Any) -> None:
    provider = Jax()
    (batch * 2 + 1).block_until_ready()
    provider.start(SystemClock(), FRAMEWORK)
    (batch * 2 + 1).block_until_ready()
    rows = provider.spans(provider.stop())
    assert set(rows["kind"]) == {"op"}
    assert set(rows["attr.hlo_module"]) == {"jit_multiply", "jit_add"}


def test_arrays_are_values_and_what_belongs_to_jax_is_closed(net: Any, batch: Any) -> None:
    provider = Jax()
    assert provider.role(type(batch)) is Role.VALUE
    assert provider.role(type(net)) is Role.CLOSED
    assert provider.role(dict) is None


CODE = """
import sys
from xsp.clock import SystemClock
from xsp.level import Kind
from xsp.provider import Request
from xsp_levels.framework.jax.provider import Jax
import xsp

provider = Jax()
provider.start(SystemClock(), Request(frozenset({Kind.PIPELINE, Kind.LAYER, Kind.OP})))
assert provider.spans(provider.stop()).is_empty()
provider.synchronize()
assert provider.model_call(print, (), {}) is None and provider.role(dict) is None
assert "jax" not in sys.modules

with xsp.profile(levels="model", replay=False) as prof:
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
