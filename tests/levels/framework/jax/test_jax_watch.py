"""Programs with jitted functions: which calls and what compiling their traces have."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import equinox
import jax
import jax.export
import jax.numpy as jnp
import pytest
from flax import nnx

import xsp
from xsp.trace import attribute_column
from xsp_levels.framework.jax.program.call import donates, jitted_call


def profiled(levels: Any = "model") -> xsp.profile:
    return xsp.profile(levels=levels, repeat=False, progress=False)


def calls(prof: xsp.profile) -> dict[str, int]:
    return {group["name"]: group["calls"] for group in prof.trace.metadata["groups"]}


def counts(prof: xsp.profile) -> dict[str, int]:
    """Return how often each span came; first ones are told without "first"."""
    found: dict[str, int] = {}
    for row in prof.trace.spans.iter_rows(named=True):
        name = row["name"].removeprefix("first ")
        found[name] = found.get(name, 0) + round(row["attributes"]["calls"])
    return found


@jax.jit  # type: ignore[untyped-decorator]
def double(x: Any) -> Any:
    return x * 2


@jax.jit  # type: ignore[untyped-decorator]
def quadruple(x: Any) -> Any:
    return double(double(x))


@pytest.fixture(scope="module")
def x() -> Any:
    return jnp.arange(3.0)


def test_outermost_calls_are_groups_by_function_and_shape(x: Any) -> None:
    with profiled() as prof:
        for _ in range(3):
            assert double(x).tolist() == [0, 2, 4]
        assert quadruple(x).tolist() == [0, 4, 8]
        double(jnp.ones(4))
    assert calls(prof) == {"double 3": 3, "quadruple 3": 1, "double 4": 1}


def test_a_function_is_compiled_once_and_before_its_call(x: Any) -> None:
    traced = []

    @jax.jit  # type: ignore[untyped-decorator]
    def fresh(x: Any) -> Any:
        traced.append(x)
        return x - 1

    with profiled() as prof:
        fresh(x)
        fresh(x)
        fresh(jnp.ones(5))
    assert calls(prof) == {"fresh 3": 2, "fresh 5": 1}
    found = counts(prof)
    assert found["compile fresh"] == found["recompile fresh"] == 1
    assert found["trace"] == found["XLA compile"] == 2
    spans = prof.trace.spans
    [reason] = attribute_column(spans, "recompile_reason").drop_nulls()
    assert reason == "float32 [3] became float32 [5]"
    assert len(traced) == 2
    parts = prof.trace.spans.filter(name="compile fresh")["path"]
    assert all("fresh 3" not in path for path in parts)


def test_what_jax_only_traces_is_no_call(x: Any) -> None:
    with profiled() as prof, xsp.span("tracing"):  # a block in which nothing happens has no trace
        jax.eval_shape(double, x)
        jax.make_jaxpr(double)(x)
    assert calls(prof) == {}


def test_exceptions_of_a_function_pass_through(x: Any) -> None:
    @jax.jit  # type: ignore[untyped-decorator]
    def raising(x: Any) -> Any:
        raise ValueError("mine")

    with profiled() as prof:
        with pytest.raises(ValueError, match="mine"):
            raising(x)
        double(x)
    assert calls(prof)["double 3"] == 1


def test_calls_of_other_threads_are_seen(x: Any) -> None:
    with profiled() as prof:
        thread = threading.Thread(target=double, args=(x,))
        thread.start()
        thread.join()
    assert calls(prof) == {"double 3": 1}


def test_functions_of_flax_and_equinox_are_seen_with_what_lies_around_them(x: Any) -> None:
    @nnx.jit  # type: ignore[untyped-decorator]
    def of_flax(x: Any) -> Any:
        return x + 1

    @equinox.filter_jit  # type: ignore[untyped-decorator]
    def of_equinox(x: Any) -> Any:
        return x + 2

    compiled = double.lower(x).compile()
    with profiled() as prof:
        assert of_flax(x).tolist() == [1, 2, 3]
        assert of_equinox(x).tolist() == [2, 3, 4]
        assert compiled(x).tolist() == [0, 2, 4]
    assert calls(prof) == {"of_flax 3": 1, "of_equinox 3": 1, "double 3": 1}


def test_the_class_of_jitted_functions_is_what_it_was(x: Any) -> None:
    cls = type(double)
    before, vectorcall = cls.__dict__["__call__"], cls.__flags__ & 1 << 11
    call = jax.export.Exported.call.__code__
    with profiled():
        assert cls.__dict__["__call__"] is not before
    assert cls.__dict__["__call__"] is before
    assert cls.__flags__ & 1 << 11 == vectorcall
    assert jax.export.Exported.call.__code__ is call


def test_a_call_is_repeated_unasked_only_if_it_changes_nothing(x: Any) -> None:
    @jax.jit  # type: ignore[untyped-decorator]
    def talking(x: Any) -> Any:
        jax.debug.callback(lambda: None)
        return x

    @nnx.jit  # type: ignore[untyped-decorator]
    def written(x: Any) -> Any:
        return x

    giving = jax.jit(lambda x: x + 1, donate_argnums=0)
    assert donates(giving)
    assert jitted_call(double, (x,), {}).hazard() is None
    assert "donate_argnums" in str(jitted_call(giving, (x,), {}).hazard())
    assert "effects besides its result" in str(jitted_call(talking, (x,), {}).hazard())
    assert "nnx.jit" in str(jitted_call(written, (x,), {}).hazard())


def test_without_jit_is_a_phase_that_is_repeated_as_it_was(x: Any) -> None:
    with profiled() as prof, jax.disable_jit():
        double(x)
        call = jitted_call(double, (x,), {})
    assert calls(prof) == {"double without jit 3": 1}
    with call.conditions():
        assert jax.config.jax_disable_jit
    assert not jax.config.jax_disable_jit


def test_a_function_with_gradients_is_a_training_step() -> None:
    step = jax.jit(lambda w, x: w - jax.grad(lambda w: jnp.sum(jnp.sin(x * w)))(w))
    filtered = equinox.filter_jit(jax.grad(lambda w: jnp.sum(jnp.cos(w))))
    w = jnp.ones(3)
    ahead = jax.jit(lambda w: jnp.sin(w) + 2)
    with profiled() as prof:
        step(w, w)
        filtered(w)
        ahead(w)
    assert sum("training step" in name for name in calls(prof)) == 2
    assert len(calls(prof)) == 3


def test_operators_lie_in_the_calls_although_these_return_early() -> None:
    @jax.jit  # type: ignore[untyped-decorator]
    def slow(x: Any) -> Any:
        with jax.named_scope("first"):
            x = jnp.tanh(x @ x)
        with jax.named_scope("second"):
            return x @ x

    x = jnp.ones((300, 300))
    with profiled(2) as prof:
        for _ in range(60):
            x = slow(x)
        x.block_until_ready()
    [trace] = prof.groups.values()
    trace.check()
    prof.trace.check()
    assert calls(prof) == {"slow 300×300": 60}
    assert {"first", "second"} <= set(trace.spans.filter(kind="layer")["name"])
    assert any("before outputs are computed" in str(each) for each in prof.trace.warnings)


def test_the_programs_own_profiler_works_in_the_block(x: Any, tmp_path: Path) -> None:
    with profiled(2) as prof:
        for number in range(40):
            if number in (2, 20):
                jax.profiler.start_trace(str(tmp_path))
            double(x)
            if number in (4, 30):
                jax.profiler.stop_trace()
    assert calls(prof) == {"double 3": 40}


def test_a_function_dies_when_the_program_lets_go_of_it(x: Any) -> None:
    with profiled(2) as prof:
        function = jax.jit(lambda x: jnp.tanh(x) + 5)
        for _ in range(5):
            function(x)
        gone = weakref.ref(function)
        del function
        gc.collect()
        assert gone() is None
    assert prof.trace.metadata["groups"]
