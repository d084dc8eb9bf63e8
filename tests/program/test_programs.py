"""Programs as users write them: loops, threads, servers, on a small PyTorch model."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import xsp

torch = pytest.importorskip("torch")
nn = torch.nn


@pytest.fixture
def x() -> Any:
    return torch.ones(4, 8)


@pytest.fixture
def model() -> Any:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).eval()


def calls(trace: xsp.Trace) -> dict[str, int]:
    """Return how many occurrences each row of kind pipeline stands for, by its name."""
    found: dict[str, int] = {}
    for span in trace.spans.filter(kind="pipeline").iter_rows(named=True):
        found[span["name"]] = found.get(span["name"], 0) + span["attributes"]["calls"]
    return found


def codes(trace: xsp.Trace) -> set[str]:
    return {problem.code for problem in trace.problems}


def train(model: Any, x: Any, steps: int) -> None:
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()


def test_spans_around_and_between_training_steps_are_all_there(model: Any, x: Any) -> None:
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.01)
    with xsp.profile(levels=2, budget=1) as prof:
        for _ in range(3):
            with xsp.span("epoch"):
                for _ in range(10):
                    with xsp.span("prepare"):
                        time.sleep(0.0005)
                    with xsp.span("forward"):
                        loss = model(x).sum()
                    loss.backward()
                    optimizer.step()
    prof.trace.check()
    found = calls(prof.trace)
    assert (found["epoch"], found["prepare"], found["training iteration"]) == (3, 30, 30)
    assert "dropped" not in codes(prof.trace)


def test_what_is_evaluated_is_told_apart_by_phase_and_shape(model: Any, x: Any) -> None:
    with xsp.profile(levels=1, budget=1) as prof:
        with torch.no_grad():
            for _ in range(3):
                model.eval()(x)
                model(x[:1])
        train(model, x, 5)
    assert {group["name"]: group["calls"] for group in prof.trace.metadata["groups"]} == {
        "Sequential 4×8": 3,
        "Sequential 1×8": 3,
        "Sequential training step 4×8": 5,
    }


def test_requests_on_four_threads_are_each_marked_and_evaluated(model: Any, x: Any) -> None:
    def serve() -> None:
        with torch.no_grad():
            for _ in range(25):
                with xsp.span("request"):
                    model(x)

    with xsp.profile(levels=2, budget=1) as prof:
        threads = [threading.Thread(target=serve) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    prof.trace.check()
    assert calls(prof.trace)["request"] == 100
    assert prof.trace.metadata["groups"][0]["calls"] == 100


def test_threads_that_train_one_after_another_have_steps_of_their_own(x: Any) -> None:
    with xsp.profile(levels=1, budget=1) as prof:
        for _ in range(3):
            thread = threading.Thread(target=train, args=(nn.Linear(8, 2), x, 4))
            thread.start()
            thread.join()
            time.sleep(0.2)
    groups = prof.trace.metadata["groups"]
    assert sum(group["calls"] for group in groups) == 12
    assert max(group["total_ns"] / group["calls"] for group in groups) < 0.1e9


def test_a_busy_process_runs_the_block_of_another_thread_unprofiled(model: Any, x: Any) -> None:
    prof = xsp.profile(levels=1, budget=0.5, on_busy="skip")
    results: list[Any] = []

    def other() -> None:
        with prof:
            results.append(model(x))

    with torch.no_grad(), prof:
        model(x)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        model(x)
    assert len(results) == 1
    assert calls(prof.trace)["block"] == 1
    with pytest.raises(ValueError, match="on_busy"):
        xsp.profile(on_busy="wait")  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_arguments_without_a_shape_are_no_concern_of_the_users_call(model: Any) -> None:
    nested = torch.nested.nested_tensor([torch.ones(2, 8), torch.ones(3, 8)])
    with torch.no_grad(), xsp.profile(levels=1, budget=0.5) as prof:
        assert nn.Linear(8, 4)(nested).is_nested
    assert prof.trace.metadata["groups"][0]["calls"] == 1


def test_what_lies_between_evaluations_marked_by_hand_is_told(model: Any) -> None:
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)
    loader = torch.utils.data.DataLoader(torch.ones(40, 8), batch_size=4)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8)).sum()
        loss.backward()
        return loss

    with xsp.profile(levels=2, budget=1) as prof:
        for batch in loader:
            with prof.evaluation("request"):
                model(batch).sum().backward()
            optimizer.step(closure)
    found = calls(prof.trace)
    assert (found["request"], found["data loading"], found["optimizer step"]) == (10, 10, 10)
    assert list(prof.groups) == ["request"]


def test_calls_that_raise_are_counted_and_said(model: Any, x: Any) -> None:
    with torch.no_grad(), xsp.profile(levels=1, budget=0.5) as prof:
        model(x)
        for _ in range(3):
            with pytest.raises(RuntimeError):
                model(x[:, :3])
    (message,) = [p.message for p in prof.trace.problems if p.code == "raised"]
    assert message.startswith("3 calls of Sequential raised")


def test_a_trace_read_in_the_block_is_not_charged_to_the_program(model: Any, x: Any) -> None:
    with torch.no_grad(), xsp.profile(levels=1, runs=2, replay=False) as prof:
        with xsp.span("before"):
            model(x)
        began = time.perf_counter()
        early = prof.trace
        taken = time.perf_counter() - began
        model(x)
    assert calls(early)["before"] == 1
    assert (prof.trace.root.latency_ns or 0) < taken * 0.5e9


def test_a_decorated_function_that_is_known_well_enough_is_noted_no_more() -> None:
    prof = xsp.profile(levels=1, runs=2)

    @prof
    def predict() -> None:
        """Do nothing, quickly."""

    for _ in range(3_000):
        predict()
    assert len(prof._dispatching.journal.evaluations) < 1_500


def test_a_signal_begins_a_profile_and_another_one_saves_it(
    model: Any, x: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = nn.Module._wrapped_call_impl.__code__
    before = signal.getsignal(signal.SIGUSR1)
    try:
        xsp.profile_on_signal(levels=1, folder=tmp_path, seconds=60)
        os.kill(os.getpid(), signal.SIGUSR1)
        with torch.no_grad():
            for _ in range(50):
                model(x)
        os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    [path] = tmp_path.glob("xsp-*-1.xsp")
    assert xsp.load(path).metadata["groups"][0]["calls"] == 50
    assert "saved to" in capsys.readouterr().err
    assert nn.Module._wrapped_call_impl.__code__ is code


def test_wrong_options_are_refused_before_the_signal_comes() -> None:
    with pytest.raises(ValueError, match="runs"):
        xsp.profile_on_signal(runs=0)


def test_a_block_left_on_another_thread_leaves_nothing_behind(model: Any, x: Any) -> None:
    prof = xsp.profile(levels=2, budget=0.3)
    with torch.no_grad():
        prof.__enter__()
        model(x)
        thread = threading.Thread(target=prof.__exit__, args=(None, None, None))
        thread.start()
        thread.join()
    assert prof.trace.metadata["groups"][0]["calls"] == 1


def test_shapes_without_end_are_one_group(model: Any) -> None:
    with torch.no_grad(), xsp.profile(levels=1, budget=0.5, replay=False) as prof:
        for length in range(1, 301):
            model(torch.ones(length, 8))
    prof.trace.check()
    groups = prof.trace.metadata["groups"]
    assert len(groups) == 1
    assert groups[0]["shapes"][0].startswith("(1…")
    assert "unlike-inputs" in codes(prof.trace)


def test_training_steps_of_ever_another_number_of_calls_are_one_group(model: Any, x: Any) -> None:
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.01)
    numbers = [1 + 7 * at % 23 for at in range(69)]
    with xsp.profile(levels=2, budget=1, replay=False) as prof:
        for number in numbers:
            loss = sum(model(x).sum() for _ in range(number))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    prof.trace.check()
    [group] = [each for each in prof.trace.metadata["groups"] if each["calls"] > 5]
    assert group["name"] == "Sequential training step (1…23) × 4×8"
    assert {size["model_calls"] for size in group["sizes"]} == set(numbers)
    per_call = [size["latency_ns"] / size["model_calls"] for size in group["sizes"]]
    assert group["samples"] == pytest.approx(4 * sum(numbers) / len(numbers), abs=4)
    assert sorted(per_call)[len(per_call) // 2] < 10 * min(per_call)  # others may be disturbed
    messages = [p.message for p in prof.trace.problems if p.code == "unlike-inputs"]
    assert "call the model 1 to 23 times" in messages[0]
    rows = {row["name"]: row for row in prof.trace.spans.iter_rows(named=True)}
    step = rows[group["name"]]
    # Each of them is an average over unlike steps, which other programs may have slowed.
    assert 0.1 < rows["backward"]["latency_ns"] / step["latency_ns"] < 2
    assert calls(prof.trace)["forward"] == sum(
        size["model_calls"] * size["calls"] for size in group["sizes"]
    )
    assert rows["backward"]["attributes"]["calls"] == group["calls"]
    each_ns = step["latency_ns"] / group["calls"]
    assert group["latency_ns"] == pytest.approx(each_ns, rel=1e-6)
    [shown] = [trace for name, trace in prof.groups.items() if name == group["name"]]
    forwards = shown.spans.filter(kind="pipeline", name="forward")
    assert 6 <= forwards.height <= 23


def test_a_single_step_whose_optimizer_calls_the_model_is_seen_inside(model: Any, x: Any) -> None:
    optimizer = torch.optim.LBFGS(model.train().parameters(), max_iter=5)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        return loss

    with xsp.profile(levels=2, replay=False) as prof:
        optimizer.step(closure)
    prof.trace.check()
    assert "not-recorded" not in codes(prof.trace)
    [step] = prof.groups.values()
    assert {"optimizer step", "backward"} <= set(step.spans["name"])
    assert step.spans.filter(kind="layer", name="Sequential").height > 1


def test_a_model_in_a_shell_without_parameters_is_evaluated(model: Any, x: Any) -> None:
    class Shell(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.held = [model]

        def forward(self, x: Any) -> Any:
            return self.held[0](x) + 1

    shell = Shell()
    with torch.no_grad(), xsp.profile(levels=2, replay=False) as prof:
        for _ in range(300):
            shell(x)
    prof.trace.check()
    [group] = prof.trace.metadata["groups"]
    assert (group["name"], group["calls"]) == ("Sequential 4×8", 300)
    assert "dropped" not in codes(prof.trace)
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.01)
    with xsp.profile(levels=2, replay=False) as prof:
        for _ in range(60):
            for _ in range(2):
                shell(x).sum().backward()
            optimizer.step()
    [group] = prof.trace.metadata["groups"]
    assert (group["name"], group["calls"]) == ("Sequential training step 2 × 4×8", 60)


def test_calls_in_training_mode_without_a_backward_pass_are_no_training(model: Any, x: Any) -> None:
    model.train()
    with xsp.profile(levels=1, replay=False) as prof:
        for _ in range(5):
            model(x)
    [group] = prof.trace.metadata["groups"]
    assert group["name"].startswith("Sequential without backward ")
    assert (group["phase"], group["variant"]) == ("inference", "without backward")
    [said] = [p.message for p in prof.trace.problems if p.code == "not-replayed"]
    assert "`model.eval()`" in said
    assert "training iteration" not in prof.trace.tree()
    assert prof.trace.metadata["summary"][-1].startswith("inference: ")


def test_a_training_step_that_an_exception_cuts_short_does_not_count(model: Any, x: Any) -> None:
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.01)

    def run(last: str) -> None:
        for number in range(1 if last == "only" else 6):
            optimizer.zero_grad()
            loss = model(x).sum()
            if number == 5 and last == "forward":
                raise KeyboardInterrupt
            loss.backward()
            if number == 5 and last == "backward":
                raise KeyboardInterrupt
            optimizer.step()
        raise KeyboardInterrupt

    for last, calls in (("forward", 5), ("backward", 5), ("step", 6), ("only", 1)):
        with pytest.raises(KeyboardInterrupt), xsp.profile(levels=1) as prof:
            run(last)
        [group] = prof.trace.metadata["groups"]
        assert (group["name"], group["calls"]) == ("Sequential training step 4×8", calls)
        said = " ".join(prof.trace.metadata["summary"])
        assert calls == 1 or f"training: {calls} iterations" in said


def test_an_evaluation_of_more_spans_than_memory_holds_has_layers_and_says_so(
    model: Any, x: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xsp.provider.size.MOST_SPANS", 10)
    with torch.no_grad(), xsp.profile(levels=2, replay=False) as prof:
        for _ in range(20):
            model(x)
    assert set(prof.trace.spans["kind"]) == {"pipeline", "layer"}
    assert "spans-left-out" in codes(prof.trace)
    prof.trace.check()


@pytest.mark.parametrize("batch_first", [True, False])
def test_sequences_that_may_come_first_are_no_number_of_samples(batch_first: bool) -> None:
    model = torch.nn.LSTM(8, 8, batch_first=batch_first)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with xsp.profile(levels=1, replay=False) as prof:
        for _ in range(4):
            model(torch.ones(35, 20, 8))[0].sum().backward()
            optimizer.step()
        with torch.no_grad():
            model.eval()(torch.ones(35, 20, 8))
    groups = prof.trace.metadata["groups"]
    assert {group["samples"] for group in groups} == {35 if batch_first else None}
    said = " ".join(prof.trace.metadata["summary"])
    assert "training: 4 iterations" in said
    assert ("samples/s" in said) is batch_first


@pytest.mark.parametrize("called", [False, True])
def test_steps_of_what_is_called_as_no_module_are_said_to_lie_outside(
    called: bool, model: Any, x: Any
) -> None:
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.01)
    with xsp.profile(levels=1, replay=False) as prof:
        for _ in range(5):
            loss = model(x).sum() if called else sum(each.sum() for each in model.parameters())
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            model.eval()(x)
    assert ("steps-outside" in codes(prof.trace)) is not called


def test_the_latency_of_unlike_evaluations_is_not_that_of_the_repeated_one() -> None:
    model, rows = nn.Linear(512, 512).eval(), [200 + 37 * n % 400 for n in range(120)]
    with torch.inference_mode(), xsp.profile(levels=1, runs=400, progress=False) as prof:
        for number in (*rows, 1):  # the last, which is repeated, is the quickest by far
            model(torch.ones(number, 512))
    [group] = prof.trace.metadata["groups"]
    assert group["repeated"] > 200
    assert group["latency_ns"] == pytest.approx(group["total_ns"] / group["calls"], rel=0.5)
