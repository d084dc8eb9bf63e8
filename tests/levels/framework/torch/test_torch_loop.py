from __future__ import annotations

import gc
import inspect
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler, swa_utils
from torch.utils.data import DataLoader, Dataset, IterableDataset

from xsp.clock import SystemClock
from xsp.level import Kind
from xsp.provider import Request
from xsp.testing import FakeClock
from xsp_levels.framework.torch.program.loop import PARTS, Loop, Part, loop, queue_facts
from xsp_levels.framework.torch.program.marker import Marker
from xsp_levels.framework.torch.program.step import StepRecorder
from xsp_levels.framework.torch.provider import Torch

Said = tuple[str, int, int, Mapping[str, Any], int]

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:.*fork.*:DeprecationWarning",  # of loaders with workers, which are forked
        "ignore:.*lr_scheduler.step.*:UserWarning",
    ),
    pytest.mark.forks,
]


class Numbers(Dataset[torch.Tensor]):  # type: ignore[misc]
    """Numbers that take a while to load; number `fails` raises."""

    def __init__(self, count: int, sleep_s: float = 0.0, fails: int = -1) -> None:
        self.count, self.sleep_s, self.fails = count, sleep_s, fails

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.sleep_s)
        if index == self.fails:
            raise ZeroDivisionError
        return torch.tensor([float(index)])


@contextmanager
def marking() -> Iterator[list[Said]]:
    said = list[Said]()

    def mark(name: str, start_ns: int, end_ns: int, attributes: Mapping[str, Any]) -> None:
        said.append((name, start_ns, end_ns, attributes, threading.get_ident()))

    marker = Marker(mark)
    try:
        yield said
    finally:
        marker.close()


def names(said: list[Said]) -> list[str]:
    return [name for name, *_ in said]


def milliseconds(said: list[Said], name: str) -> list[float]:
    return [(end - start) / 1e6 for found, start, end, *_ in said if found == name]


@pytest.fixture(autouse=True)
def functions_are_restored() -> Iterator[None]:
    """Fail a test after which a function is not what it was before."""
    before = {function: _looks(function) for part in PARTS for function in part.functions()}
    yield
    assert {function: _looks(function) for function in before} == before
    assert not nn.modules.module._global_module_registration_hooks
    assert not {"to", "cuda"} & set(vars(torch.Tensor))


def _looks(function: Any) -> tuple[Any, ...]:
    return function.__code__, function.__kwdefaults__, "__signature__" in vars(function)


@pytest.fixture
def model() -> nn.Module:
    return nn.Linear(1, 1)


@pytest.fixture
def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_a_training_loop_is_told_part_by_part(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    scheduler, average = lr_scheduler.StepLR(optimizer, 1), swa_utils.AveragedModel(model)
    with marking() as said:
        for batch in DataLoader(Numbers(4), batch_size=2):
            optimizer.zero_grad()
            model(batch).sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            average.update_parameters(model)
    step = ["data loading", "zero_grad", "clip gradients", "scheduler step", "moving average"]
    assert names(said) == ["start of data loading", *2 * step, "end of data loading"]
    assert all(start < end for _, start, end, *_ in said)
    ends = [end for _, _, end, *_ in said]
    assert ends == sorted(ends)


def test_parts_inside_an_evaluation_are_rows_of_kind_pipeline(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    clock, provider = SystemClock(), Torch()
    provider.start(clock, Request(frozenset({Kind.PIPELINE, Kind.OP})))
    for batch in DataLoader(Numbers(2), batch_size=2):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    rows = provider.spans(provider.stop())
    parts = rows.filter((rows["kind"] == "pipeline") & (rows["name"] != "forward"))
    assert parts.sort("start_ns")["name"].to_list() == [
        "start of data loading",
        "data loading",
        "zero_grad",
        "backward",
        "optimizer step",
        "end of data loading",
    ]
    loading = rows.filter(rows["name"] == "data loading")
    assert loading["attr.workers"].to_list() == [0]
    assert loading["attr.batches_ready"].to_list() == [None]
    doubled = [name for name in rows["name"].to_list() if "#" in name]
    assert not doubled, "PyTorch's own annotations of the same parts"


def test_waiting_for_data_takes_as_long_as_the_dataset_does() -> None:
    with marking() as said:
        list(DataLoader(Numbers(8, sleep_s=0.002), batch_size=4))
    assert all(8 <= took < 100 for took in milliseconds(said, "data loading"))
    assert len(milliseconds(said, "data loading")) == 2


def test_with_workers_it_is_told_how_many_batches_wait() -> None:
    with marking() as said:
        for _ in DataLoader(Numbers(8), num_workers=2, prefetch_factor=2):
            time.sleep(0.05)
    facts = [facts for name, _, _, facts, _ in said if name == "data loading"]
    assert [fact["workers"] for fact in facts] == [2] * 8
    ready = [fact["batches_ready"] for fact in facts]
    assert all(0 <= count <= 4 for count in ready)
    assert max(ready[1:5]) >= 2, "the program is slower than the workers"
    assert said[0][0] == "start of data loading"
    assert said[0][3] == {"workers": 2}
    assert said[-1][0] == "end of data loading"


def test_a_slow_dataset_leaves_no_batch_waiting() -> None:
    with marking() as said:
        list(DataLoader(Numbers(6, sleep_s=0.03), num_workers=1, prefetch_factor=2))
    ready = [facts["batches_ready"] for name, *_, facts, _ in said if name == "data loading"]
    assert sum(ready) <= 1


def test_a_batch_that_came_before_its_turn_is_ready() -> None:
    class Queue:
        def qsize(self) -> int:
            return 1

    class Batches:
        _num_workers = 2
        _data_queue = Queue()
        _task_info = {0: (0,), 1: (1, "data"), 2: (0, "data"), 3: (1,)}  # noqa: RUF012

    assert queue_facts(Batches()) == {"workers": 2, "batches_ready": 3}


def test_where_a_queue_does_not_tell_its_size_the_workers_are_told() -> None:
    class Queue:
        def qsize(self) -> int:
            raise NotImplementedError

    class Batches:
        _num_workers = 2
        _data_queue = Queue()
        _task_info: dict[int, Any] = {}  # noqa: RUF012

    assert queue_facts(Batches()) == {"workers": 2}


def test_workers_that_persist_are_started_once() -> None:
    loader = DataLoader(Numbers(2), num_workers=1, persistent_workers=True)
    with marking() as said:
        assert len(list(loader)) == len(list(loader)) == 2
    del loader
    count = Counter(names(said))
    assert count == {"start of data loading": 2, "data loading": 4, "end of data loading": 2}


DYING = """
import os, sys
from torch.utils.data import DataLoader
from xsp_levels.framework.torch.program.marker import Marker

class Numbers(list):
    def __getitem__(self, index):
        return os._exit(9) if index == 2 else super().__getitem__(index)

told = []
if sys.argv[1:]:
    Marker(lambda *part: told.append(part))
try:
    list(DataLoader(Numbers(range(4)), num_workers=1, collate_fn=list))
except RuntimeError as error:
    print(str(error).split(" (pid")[0], len(told) > 0)
"""


def test_a_worker_that_dies_raises_as_without_xsp() -> None:
    # In processes of their own: PyTorch raises from a signal's handler, wherever that interrupts.
    plain, told = (
        subprocess.run(
            [sys.executable, "-c", DYING, *arguments], capture_output=True, text=True, check=True
        ).stdout.split()
        for arguments in ([], ["watched"])
    )
    assert plain[:2] == ["DataLoader", "worker"]
    assert told == [*plain[:-1], "True"]


@pytest.mark.parametrize("workers", [0, 1])
def test_an_exception_of_the_dataset_comes_through(workers: int) -> None:
    with marking() as said, pytest.raises(ZeroDivisionError):
        list(DataLoader(Numbers(3, fails=1), num_workers=workers))
    gc.collect()  # the exception keeps the iterator, and that a thread, for a while
    loading = [facts.get("error") for name, _, _, facts, _ in said if name == "data loading"]
    assert loading == [None, "ZeroDivisionError"]


def test_workers_do_not_tell(tmp_path: Any) -> None:
    class Inner(IterableDataset[int]):  # type: ignore[misc]
        def __iter__(self) -> Iterator[int]:
            hooked = any(hook.placed for hook in loop()._hooks.values())
            (tmp_path / "hooked").write_text(str(hooked))
            return iter([1])

    provider = Torch()
    provider.watch(Silent())
    list(DataLoader(Inner(), num_workers=1))
    provider.unwatch()
    assert (tmp_path / "hooked").read_text() == "False"


def test_the_first_of_two_watchers_that_is_closed_leaves_recording_alone(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    recorder = StepRecorder()
    with marking() as said:
        optimizer.zero_grad()
        recorder.start(FakeClock())
        optimizer.zero_grad()
    optimizer.zero_grad()
    kept = recorder.stop()
    optimizer.zero_grad()
    assert names(said) == ["zero_grad"] * 2
    assert [interval.name for interval in kept] == ["zero_grad"] * 2


def test_a_scheduler_of_the_users_own_is_seen_whatever_it_overrides(
    optimizer: torch.optim.Optimizer,
) -> None:
    class Own(lr_scheduler.StepLR):  # type: ignore[misc]
        def step(self, epoch: Any = None) -> None:
            super().step(epoch)

    class Other(lr_scheduler.ReduceLROnPlateau):  # type: ignore[misc]
        pass

    own, other = Own(optimizer, 1), Other(optimizer)
    with marking() as said:
        own.step()
        other.step(1.0)
    assert names(said) == ["scheduler step"] * 3, "the class's own, and the one that it calls"
    inner, outer = said[:2]
    assert outer[1] <= inner[1] < inner[2] <= outer[2]


def test_functions_look_the_same_to_those_who_ask(optimizer: torch.optim.Optimizer) -> None:
    asked = (optimizer.zero_grad, nn.Module.zero_grad, nn.utils.clip_grad_norm_)
    before = [inspect.signature(function) for function in asked]
    zero_grad = torch.optim.Optimizer.zero_grad
    with marking():
        assert [inspect.signature(function) for function in asked] == before
        assert torch.optim.Optimizer.zero_grad is zero_grad


def test_gradients_clipped_by_a_name_imported_before_are_seen(model: nn.Module) -> None:
    from torch.nn.utils import clip_grad_value_ as mine  # noqa: PLC0415

    model(torch.ones(1)).backward()
    with marking() as said:
        mine(model.parameters(), 1.0)
        mine(parameters=model.parameters(), clip_value=1.0)
    assert names(said) == ["clip gradients"] * 2


def test_a_part_that_raises_has_an_end_and_the_exception(model: nn.Module) -> None:
    with marking() as said, pytest.raises(ValueError, match="far"):
        nn.utils.clip_grad_norm_(model.parameters(), "far")
    assert names(said) == ["clip gradients"]
    assert said[0][3] == {"error": "ValueError"}


def test_what_is_no_part_of_a_training_step_is_told(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    told: list[str] = []
    evaluations = Silent()
    evaluations.mark = lambda name, *_: told.append(name)  # type: ignore[method-assign]
    provider = Torch()
    provider.watch(evaluations)
    try:
        model.weight.sum().backward()
        optimizer.step()
        model(torch.ones(1)).backward()  # a training step, which the watcher leaves to recorders
        optimizer.step()
    finally:
        provider.unwatch()
    assert told == ["backward", "optimizer step"]


def test_parts_are_told_on_their_own_threads(optimizer: torch.optim.Optimizer) -> None:
    threads = [threading.Thread(target=optimizer.zero_grad) for _ in range(4)]
    with marking() as said:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert Counter(names(said)) == {"zero_grad": 4}
    assert threading.get_ident() not in {thread for *_, thread in said}


def test_calls_on_other_threads_go_on_while_hooks_come_and_go(
    optimizer: torch.optim.Optimizer,
) -> None:
    done, failed = threading.Event(), list[Exception]()

    def call() -> None:
        try:
            while not done.is_set():
                optimizer.zero_grad()
        except Exception as error:  # noqa: BLE001  whatever it is, it fails the test
            failed.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    for _ in range(300):
        with marking():
            pass
    done.set()
    thread.join()
    assert not failed


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # this test is about forking so
def test_a_forked_child_has_no_hooks_though_another_thread_held_the_lock(
    optimizer: torch.optim.Optimizer,
) -> None:
    code = inspect.unwrap(torch.optim.Optimizer.zero_grad).__code__
    held, proceed = threading.Event(), threading.Event()

    def hold() -> None:
        with loop()._lock:
            held.set()
            proceed.wait(30)

    provider, recorder = Torch(), StepRecorder()
    provider.watch(Silent())
    recorder.start(FakeClock())
    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)
    child = os.fork()
    if child == 0:
        here = inspect.unwrap(torch.optim.Optimizer.zero_grad).__code__
        os._exit(0 if here is code else 1)
    status = _ended(child)
    proceed.set()
    thread.join()
    recorder.stop()
    provider.unwatch()
    assert status == 0


def _ended(child: int) -> int | None:
    for _ in range(1000):
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return status
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return None


class Silent:
    """Evaluations that do as asked, and say nothing."""

    by_hand = False

    def again(self, like: Any, work: Any, found_ns: int) -> tuple[Any, Any] | None:
        """Leave the call to `run`."""
        return None

    def run(self, call: Any) -> Any:
        return call()

    def begin(self, call: Any) -> None:
        """Begin nothing."""

    def identify(self, call: Any) -> None:
        """Name nothing."""

    def extend(self, until_ns: int | None = None, pauses: Any = ()) -> None:
        """Extend nothing."""

    def end(self, variant: str = "", calls: int = 1) -> None:
        """End nothing."""

    def mark(self, name: str, start_ns: int, end_ns: int, attributes: Mapping[str, Any]) -> None:
        """Note nothing."""

    def problem(self, message: str) -> None:
        """Say nothing."""


def test_a_function_that_another_tool_has_changed_meanwhile_stays_changed(
    optimizer: torch.optim.Optimizer,
) -> None:
    def fake(self: Any, set_to_none: bool = True) -> str:
        return "fake"

    function = inspect.unwrap(torch.optim.Optimizer.zero_grad)
    code = function.__code__
    with marking():
        pass
    function.__code__ = fake.__code__
    try:
        with marking() as said:
            assert optimizer.zero_grad() == "fake"
        assert function.__code__ is fake.__code__
    finally:
        function.__code__ = code
    assert not said


def test_a_library_imported_meanwhile_is_found_when_a_model_is_made(
    monkeypatch: pytest.MonkeyPatch, model: nn.Module
) -> None:
    library = ModuleType("timm.utils.model_ema")

    class Ema(nn.Module):  # type: ignore[misc]
        def update(self, model: nn.Module) -> str:
            return "updated"

    library.ModelEmaV2 = Ema  # type: ignore[attr-defined]
    with marking() as said:
        monkeypatch.setitem(sys.modules, library.__name__, library)
        monkeypatch.setitem(sys.modules, "another", library)  # the number of modules tells
        nn.Sequential(nn.Identity())
        assert Ema().update(model) == "updated"
    assert names(said) == ["moving average"]
    assert Ema().update(model) == "updated"
    assert len(said) == 1


def test_each_item_of_a_generator_function_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    library = ModuleType("library")
    closed = list[str]()

    class Pipeline:
        def preprocess(self, count: int) -> Iterator[int]:
            try:
                yield from range(count)
            finally:
                closed.append("closed")

    library.Pipeline = Pipeline  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "library", library)
    part = Part("preprocess", "library", "Pipeline", "preprocess")
    monkeypatch.setattr("xsp_levels.framework.torch.program.loop.PARTS", (part,))
    own, said = Loop(nn.modules.module, lambda: False), list[str]()
    own.watch(lambda name, *_: said.append(name))
    try:
        assert inspect.isgeneratorfunction(Pipeline.preprocess)
        assert list(Pipeline().preprocess(3)) == [0, 1, 2]
        partly = Pipeline().preprocess(3)
        assert next(partly) == 0
        del partly
    finally:
        own.watch(None)
    assert said == ["preprocess"] * 5  # the first's end, too
    assert closed == ["closed"] * 2


def compiled_graphs(step: Callable[[torch.Tensor], torch.Tensor]) -> list[int]:
    """Return how many graphs were compiled before, while and after the parts are watched."""
    from torch._dynamo.utils import counters  # noqa: PLC0415

    torch._dynamo.reset()
    counters.clear()
    graphs = list[int]()

    def call() -> None:
        compiled(torch.ones(1))
        graphs.append(counters["stats"]["unique_graphs"])

    compiled = torch.compile(step, backend="eager")
    call()
    with marking():
        call()
        call()
    call()
    with marking():
        call()
    torch._dynamo.reset()
    return graphs


def test_compiled_functions_compile_as_before(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        return x + 1

    graphs = compiled_graphs(step)
    assert graphs == [graphs[0]] * 5

    model(torch.ones(1)).backward()

    def clip(x: torch.Tensor) -> torch.Tensor:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        return x + 1

    # The function, a part of the graph, has other code while it is hooked: Dynamo may compile
    # once more, and never again.
    first, watched, *later = compiled_graphs(clip)
    assert watched <= 2 * first
    assert later == [watched] * 3


def test_functions_are_compiled_into_one_graph_watched_or_not(model: nn.Module) -> None:
    def clip(x: torch.Tensor) -> torch.Tensor:
        nn.utils.clip_grad_norm_(parameters=model.parameters(), max_norm=1.0)
        return x + 1

    def compile_and_call() -> None:
        torch._dynamo.reset()
        compiled = torch.compile(clip, backend="eager", fullgraph=True)
        assert [compiled(torch.ones(1)).item() for _ in range(2)] == [2, 2]

    model(torch.ones(1)).backward()
    compile_and_call()
    with marking() as said:
        compile_and_call()
    compile_and_call()  # Dynamo keeps what it knows of a function's parameters
    assert not said, "it is no call any more, but a part of the graph"
    torch._dynamo.reset()


def test_a_call_costs_a_few_microseconds_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    class Owner:
        def method(self) -> None:
            pass

    library = ModuleType("library")
    library.Owner = Owner  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "library", library)
    part = Part("part", "library", "Owner", "method")
    monkeypatch.setattr("xsp_levels.framework.torch.program.loop.PARTS", (part,))
    own, owner = Loop(nn.modules.module, torch.compiler.is_compiling), Owner()

    def least_ns() -> float:
        took = []
        for _ in range(30):
            start = time.perf_counter_ns()
            for _ in range(100):
                owner.method()
            took.append((time.perf_counter_ns() - start) / 100)
        return min(took)

    bare = least_ns()
    own.watch(lambda *_: None)
    try:
        hooked = least_ns()
    finally:
        own.watch(None)
    assert hooked - bare < 20_000  # about 1,000 on a machine that nobody else uses
