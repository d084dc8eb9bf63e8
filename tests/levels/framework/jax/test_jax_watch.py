from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import equinox
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import xsp
from xsp.provider.watching import ModelCall
from xsp_levels.framework.jax.program.call import donates, name_of
from xsp_levels.framework.jax.program.watcher import told_apart
from xsp_levels.framework.jax.provider import Jax


class Log:
    """Evaluations that write down what they are told."""

    def __init__(self, *, by_hand: bool = False) -> None:
        self.by_hand = by_hand
        self.calls: list[ModelCall] = []
        self.marks: list[str] = []

    def again(self, like: Any, work: Any, found_ns: int) -> tuple[Any, Any] | None:
        """Leave the call to `run`."""
        return None

    def run(self, call: ModelCall) -> Any:
        self.calls.append(call)
        return call()

    def begin(self, call: ModelCall | None) -> None:
        raise AssertionError("JAX has no training steps of several calls")

    def identify(self, call: ModelCall) -> None:
        raise AssertionError

    def extend(self, until_ns: int | None = None, pauses: Any = ()) -> None:
        raise AssertionError

    def end(self, variant: str = "", calls: int = 1) -> None:
        raise AssertionError

    def mark(self, name: str, start_ns: int, end_ns: int, attributes: Mapping[str, Any]) -> None:
        assert start_ns <= end_ns
        self.marks.append(name)

    def problem(self, message: str) -> None:
        raise AssertionError(message)

    @property
    def subjects(self) -> list[str]:
        return [call.subject for call in self.calls]


@contextmanager
def watching(*, by_hand: bool = False) -> Iterator[Log]:
    log, provider = Log(by_hand=by_hand), Jax()
    provider.watch(log)
    try:
        yield log
    finally:
        provider.unwatch()


@jax.jit  # type: ignore[untyped-decorator]
def double(x: Any) -> Any:
    return x * 2


@jax.jit  # type: ignore[untyped-decorator]
def quadruple(x: Any) -> Any:
    return double(double(x))


@pytest.fixture(scope="module")
def x() -> Any:
    return jnp.arange(3.0)


def test_an_outermost_call_of_a_jitted_function_is_an_evaluation(x: Any) -> None:
    with watching() as log:
        assert double(x).tolist() == [0, 2, 4]
        assert quadruple(x).tolist() == [0, 4, 8]
    assert log.subjects == ["double", "quadruple"]
    assert log.calls[0].inputs == (((3,), "float32"),)
    double(x)
    assert len(log.calls) == 2


def test_operators_of_jax_itself_are_no_evaluations(x: Any) -> None:
    with watching() as log:
        jnp.where(x > 1, x, 0).sum()
    assert log.calls == []


def test_a_function_is_compiled_before_its_evaluation_begins(x: Any) -> None:
    traced = []

    @jax.jit  # type: ignore[untyped-decorator]
    def fresh(x: Any) -> Any:
        traced.append(x)
        return x - 1

    with watching() as log:
        fresh(x)
        fresh(x)
        fresh(jnp.ones(5))
    assert log.marks == ["trace", "lower", "XLA compile", "compile fresh"] * 2
    assert len(log.calls) == 3
    assert len(traced) == 2


def test_a_function_that_was_compiled_before_is_not_compiled_again(x: Any) -> None:
    double(x)
    with watching() as log:
        double(x)
    assert log.marks == []


def test_what_jax_traces_is_no_evaluation(x: Any) -> None:
    with watching() as log:
        jax.grad(lambda x: double(x).sum())(x)
    assert log.calls == []


def test_exceptions_of_a_function_pass_through(x: Any) -> None:
    @jax.jit  # type: ignore[untyped-decorator]
    def raising(x: Any) -> Any:
        raise ValueError("mine")

    with watching() as log:
        with pytest.raises(ValueError, match="mine"):
            raising(x)
        double(x)
    assert log.subjects[-1] == "double"


def test_calls_of_other_threads_are_seen(x: Any) -> None:
    with watching() as log:
        thread = threading.Thread(target=double, args=(x,))
        thread.start()
        thread.join()
    assert log.subjects == ["double"]


def test_functions_of_flax_and_equinox_are_seen_with_what_lies_around_them(x: Any) -> None:
    @nnx.jit  # type: ignore[untyped-decorator]
    def of_flax(x: Any) -> Any:
        return x + 1

    @equinox.filter_jit  # type: ignore[untyped-decorator]
    def of_equinox(x: Any) -> Any:
        return x + 2

    compiled = double.lower(x).compile()
    with watching() as log:
        assert of_flax(x).tolist() == [1, 2, 3]
        assert of_equinox(x).tolist() == [2, 3, 4]
        assert compiled(x).tolist() == [0, 2, 4]
    assert log.subjects == ["of_flax", "of_equinox", "double"]


def test_where_the_program_marks_evaluations_calls_are_none(x: Any) -> None:
    with watching(by_hand=True) as log:
        double(x)
    assert log.calls == []


def test_the_class_of_jitted_functions_is_what_it_was(x: Any) -> None:
    cls = type(double)
    before, vectorcall = cls.__dict__["__call__"], cls.__flags__ & 1 << 11
    with watching():
        assert cls.__dict__["__call__"] is not before
    assert cls.__dict__["__call__"] is before
    assert cls.__flags__ & 1 << 11 == vectorcall


def test_a_pure_function_can_be_repeated(x: Any) -> None:
    with watching() as log:
        double(x)
    assert log.calls[0].hazard() is None


def test_a_function_that_takes_arrays_away_is_not_repeated_unasked() -> None:
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    with watching() as log:
        step(jnp.ones(2))
    assert donates(step)
    assert "donate_argnums" in str(log.calls[0].hazard())


def test_a_function_that_prints_is_not_repeated_unasked(x: Any) -> None:
    @jax.jit  # type: ignore[untyped-decorator]
    def talking(x: Any) -> Any:
        jax.debug.callback(lambda: None)
        return x

    with watching() as log:
        talking(x)
    jax.effects_barrier()
    assert "effects besides its result" in str(log.calls[0].hazard())


def test_a_function_that_writes_to_modules_is_not_repeated_unasked(x: Any) -> None:
    @nnx.jit  # type: ignore[untyped-decorator]
    def written(x: Any) -> Any:
        return x

    with watching() as log:
        written(x)
    assert "nnx.jit" in str(log.calls[0].hazard())


def test_without_jit_is_a_phase_that_is_repeated_as_it_was(x: Any) -> None:
    with watching() as log, jax.disable_jit():
        double(x)
    [call] = log.calls
    assert call.phase == "without jit"
    with call.conditions():
        assert jax.config.jax_disable_jit
    assert not jax.config.jax_disable_jit


def test_a_jitted_partial_has_a_name() -> None:
    import functools  # noqa: PLC0415

    assert name_of(jax.jit(functools.partial(double.__wrapped__))) != ""


def test_a_block_has_groups_by_function_and_shape(x: Any) -> None:
    @jax.jit  # type: ignore[untyped-decorator]
    def cold(x: Any) -> Any:
        return jnp.tanh(x)

    with xsp.profile(levels="model", replay=False) as prof:
        for _ in range(2):
            double(x)
        cold(x)
        double(jnp.ones(4))
    assert set(prof.groups) == {"double 3", "cold 3", "double 4"}
    assert "compile cold" in set(prof.trace.spans["name"])


def test_an_evaluation_that_is_marked_lasts_until_its_outputs_are_ready() -> None:
    slow = jax.jit(lambda x: jnp.linalg.inv(x @ x + jnp.eye(200)))
    x = jnp.ones((200, 200))
    slow(x).block_until_ready()
    with xsp.profile(levels="model", replay=False) as prof:
        for _ in range(3):
            with prof.evaluation("mine"):
                result = slow(x)
            assert result.is_ready()
    assert list(prof.groups) == ["mine"]


def test_a_function_with_gradients_is_a_training_step() -> None:
    step = jax.jit(lambda w, x: w - jax.grad(lambda w: jnp.sum(jnp.sin(x * w)))(w))
    filtered = equinox.filter_jit(jax.grad(lambda w: jnp.sum(jnp.cos(w))))
    w = jnp.ones(3)
    ahead = jax.jit(lambda w: jnp.sin(w) + 2)
    with watching() as log:
        step(w, w)
        filtered(w)
        ahead(w)
    assert [call.phase for call in log.calls] == ["training step", "training step", ""]


def test_only_static_numbers_make_another_kind_of_call() -> None:
    def step(number: Any, x: Any) -> Any:
        return x + number

    plain, static = jax.jit(step), jax.jit(step, static_argnums=0)
    assert told_apart(plain, (1, 2.0), {}) == told_apart(plain, (2, 3.0), {})
    assert told_apart(static, (1, 2.0), {}) != told_apart(static, (2, 2.0), {})
