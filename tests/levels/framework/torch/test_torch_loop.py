from __future__ import annotations

import gc
import inspect
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from part_log import PartLog, Said, marking
from torch import nn
from torch.optim import lr_scheduler, swa_utils
from torch.utils.data import DataLoader, Dataset

from xsp.testing import FakeClock
from xsp_levels.framework.torch.program.loop import PARTS, Loop, Part, loop
from xsp_levels.framework.torch.program.step import StepRecorder

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


def test_waiting_for_data_takes_as_long_as_the_dataset_does() -> None:
    with marking() as said:
        list(DataLoader(Numbers(8, sleep_s=0.002), batch_size=4))
    assert all(took >= 8 for took in milliseconds(said, "data loading"))
    assert len(milliseconds(said, "data loading")) == 2


@pytest.mark.timing
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


DYING = """
import os, sys
import xsp
from torch.utils.data import DataLoader

class Numbers(list):
    def __getitem__(self, index):
        return os._exit(9) if index == 2 else super().__getitem__(index)

block = xsp.profile(levels=1, progress=False)
try:
    if sys.argv[1:]:
        block.__enter__()
    list(DataLoader(Numbers(range(4)), num_workers=1, collate_fn=list))
except RuntimeError as error:
    print(str(error).split(" (pid")[0])
if sys.argv[1:]:
    block.__exit__(None, None, None)
    print("data loading" in block.trace.spans["name"].to_list())
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
    assert told == [*plain, "True"]


@pytest.mark.parametrize("workers", [0, 1])
def test_an_exception_of_the_dataset_comes_through(workers: int) -> None:
    with marking() as said, pytest.raises(ZeroDivisionError):
        list(DataLoader(Numbers(3, fails=1), num_workers=workers))
    gc.collect()  # the exception keeps the iterator, and that a thread, for a while
    loading = [facts.get("error") for name, _, _, facts, _ in said if name == "data loading"]
    assert loading == [None, "ZeroDivisionError"]


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

    recorder = StepRecorder()
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


@pytest.mark.timing
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
    own.watch(PartLog())
    try:
        hooked = least_ns()
    finally:
        own.watch(None)
    assert hooked - bare < 20_000  # about 1,000 on a machine that nobody else uses
