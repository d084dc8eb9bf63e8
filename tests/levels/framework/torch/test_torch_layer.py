from __future__ import annotations

import gc
import os
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import polars as pl
import pytest
import torch
from torch import nn

from xsp.clock import SystemClock
from xsp.testing import FakeClock
from xsp_levels.framework.torch.module.layer import LayerRecorder
from xsp_levels.framework.torch.module.row import layer_rows, predict_rows


class Block(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.act = nn.ReLU()
        self.second = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.second(self.act(self.first(x)))) + x


class Failing(nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("the model's own error")


class Ticking(FakeClock):
    """A clock that moves on by one whenever it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.tick

    def tick(self) -> int:
        self.advance(1)
        return self.time_ns


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    return torch.ones(2, 4)


def recorded(call: Callable[[], Any], **how: bool) -> Any:
    recorder = LayerRecorder()
    recorder.start(SystemClock(), **how)
    try:
        call()
    finally:
        records = recorder.stop()
    return records


def rows(call: Callable[[], Any], **how: bool) -> pl.DataFrame:
    return layer_rows(recorded(call, **how))


def test_every_call_has_name_path_and_class(x: torch.Tensor) -> None:
    model = nn.Sequential(Block(), nn.Identity())
    found = rows(lambda: model(x))
    assert found["name"].to_list() == [
        "Sequential",
        "0",
        "first",
        "act",
        "second",
        "act",
        "1",
    ]
    assert found["attr.module_path"].to_list()[:3] == ["", "0", "0.first"]
    assert found["attr.module_class"].to_list()[-1] == "Identity"
    assert found["attr.module_type"].to_list()[2] == "torch.nn.modules.linear.Linear"
    assert set(found["thread"]) == {threading.get_ident()}


def test_calls_lie_inside_the_call_that_made_them(x: torch.Tensor) -> None:
    clock = Ticking()
    recorder = LayerRecorder()
    recorder.start(clock)
    Block()(x)
    found = layer_rows(recorder.stop())
    assert list(zip(found["start_ns"], found["end_ns"], strict=True)) == [
        (1, 10),
        (2, 3),
        (4, 5),
        (6, 7),
        (8, 9),
    ]


def test_a_module_called_more_than_once_has_ordinals(x: torch.Tensor) -> None:
    model = Block()
    found = rows(lambda: (model(x), model(x)))
    assert found.filter(name="act")["attr.call_index"].to_list() == [0, 1, 0, 1]
    assert found.filter(name="first")["attr.call_index"].to_list() == [None, None]


def test_a_shared_module_keeps_its_first_path(x: torch.Tensor) -> None:
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    found = rows(lambda: model(x)).filter(pl.col("attr.module_class") == "Linear")
    assert found["attr.module_path"].to_list() == ["0", "0"]
    assert found["attr.call_index"].to_list() == [0, 1]


def test_sizes_count_shared_tensors_once(x: torch.Tensor) -> None:
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.BatchNorm1d(4).eval(), shared)
    found = rows(lambda: model(x))
    weights = 4 * (4 * 4 + 4)
    assert found["attr.parameter_bytes"].to_list() == [weights + 32, weights, 32, weights]
    assert found["attr.buffer_bytes"].to_list()[0] == 2 * 16 + 8


def test_an_exception_passes_through_and_its_calls_are_kept(x: torch.Tensor) -> None:
    model = nn.Sequential(nn.Identity(), Failing())
    recorder = LayerRecorder()
    recorder.start(SystemClock())
    with pytest.raises(ZeroDivisionError, match="own error") as caught:
        model(x)
    found = layer_rows(recorder.stop())
    assert found["attr.error"].to_list() == ["ZeroDivisionError", None, "ZeroDivisionError"]
    assert caught.value.__context__ is None


def test_a_traceback_shows_pytorchs_own_line_for_a_recorded_call(x: torch.Tensor) -> None:
    recorder = LayerRecorder()
    recorder.start(SystemClock())
    try:
        Failing()(x)
    except ZeroDivisionError as error:
        frames = traceback.extract_tb(error.__traceback__)
    recorder.stop()
    lines = [frame.line for frame in frames if frame.name == "_wrapped_call_impl"]
    assert len(lines) == 2
    assert all("return self._call_impl(" in str(line) for line in lines)


def test_two_threads_through_one_model_are_kept_apart(x: torch.Tensor) -> None:
    model = nn.Sequential(Block(), Block())
    arrived: list[int] = []
    recorder = LayerRecorder(lambda: arrived.append(threading.get_ident()))
    recorder.start(SystemClock())
    barrier = threading.Barrier(2)

    def work() -> None:
        barrier.wait()
        for _ in range(20):
            model(x)

    with torch.no_grad():
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = layer_rows(recorder.stop())
    assert found.height == 2 * 20 * 11
    counts = found.group_by("thread", "attr.module_path").len()
    assert set(found["thread"]) == set(arrived)
    assert counts.filter(pl.col("attr.module_path") == "0.first")["len"].to_list() == [20, 20]


def test_replicas_on_other_threads_are_no_models(x: torch.Tensor) -> None:
    class Parallel(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.module = Block()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            replica = Block()  # as nn.DataParallel does for each device
            thread = threading.Thread(target=replica, args=(x,))
            thread.start()
            thread.join()
            return x

    model = Parallel()
    assert predict_rows(recorded(lambda: model(x)), "predict").height == 1


def test_outermost_recording_leaves_pytorchs_code_inside(x: torch.Tensor) -> None:
    original = nn.Module.__call__.__code__
    inside: list[Any] = []

    class Spy(nn.Module):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inside.append(nn.Module.__call__.__code__)
            return x

    model = nn.Sequential(nn.Linear(4, 4), Spy())
    records = recorded(lambda: (model(x), model(x)), outermost=True)
    assert inside == [original] * 2
    assert predict_rows(records, "predict").height == 2
    assert layer_rows(records).height == 2


def test_detail_keeps_shapes_and_dtypes_of_what_goes_in_and_out(x: torch.Tensor) -> None:
    class Nested(nn.Module):  # type: ignore[misc]
        def forward(self, x: Any, *, more: dict[str, Any]) -> tuple[Any, list[Any]]:
            return x, [more["a"].long()]

    model = Nested()
    found = rows(lambda: model(x, more={"a": torch.ones(3), "b": 1}), detail=True)
    assert found["attr.input_shapes"].to_list() == [[[2, 4], [3]]]
    assert found["attr.input_dtypes"].to_list() == [["float32", "float32"]]
    assert found["attr.output_shapes"].to_list() == [[[2, 4], [3]]]
    assert found["attr.output_dtypes"].to_list() == [["float32", "int64"]]


def test_calls_still_under_way_are_counted_as_dropped(x: torch.Tensor) -> None:
    begun, proceed = threading.Event(), threading.Event()

    class Waiting(nn.Module):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            begun.set()
            proceed.wait(10)
            return x

    recorder = LayerRecorder()
    recorder.start(SystemClock())
    thread = threading.Thread(target=nn.Sequential(Waiting()), args=(x,))
    thread.start()
    begun.wait(10)
    records = recorder.stop()
    proceed.set()
    thread.join()
    assert records.dropped == 2
    assert layer_rows(records).height == 0


def test_pytorchs_code_and_globals_are_as_before(x: torch.Tensor) -> None:
    function = nn.Module.__call__
    before = function, function.__code__, set(function.__globals__)
    recorded(lambda: Block()(x))
    assert before == (nn.Module.__call__, function.__code__, set(function.__globals__))


@pytest.mark.forks
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # threads of PyTorch's own
def test_a_forked_child_runs_pytorchs_own_code(x: torch.Tensor) -> None:
    original = nn.Module.__call__.__code__
    model = Block()

    def fork_inside(_: Any, __: Any, output: Any) -> None:
        child = os.fork()
        if child == 0:
            os._exit(0 if nn.Module.__call__.__code__ is original else 1)
        statuses.append(os.waitpid(child, 0)[1])

    statuses: list[int] = []
    model.second.register_forward_hook(fork_inside)
    for outermost in (False, True):
        recorded(lambda: model(x), outermost=outermost)
    assert statuses == [0, 0]


def test_records_do_not_keep_the_model_alive(x: torch.Tensor) -> None:
    models = [Block()]
    records = recorded(lambda: models[0](x))
    gone = weakref.ref(models.pop())
    gc.collect()
    assert gone() is None
    assert layer_rows(records).height == 5
