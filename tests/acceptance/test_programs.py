"""Programs are told as they were: what is one call or step, and what stays as it was."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import xsp

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
nn = torch.nn


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def net(width: int = 8) -> Any:
    return nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, 4))


def groups(prof: xsp.profile) -> dict[str, int]:
    return {group["name"]: group["calls"] for group in prof.trace.metadata["groups"]}


def rows(prof: xsp.profile, kind: str) -> dict[str, int]:
    spans = prof.trace.spans.unnest("attributes").filter(kind=kind)
    return dict(spans.group_by("name").agg(pl.sum("calls")).iter_rows())


def x(batch: int = 8) -> Any:
    return torch.ones(batch, 8)


def test_each_outermost_call_is_counted_and_layers_lie_in_it() -> None:
    model = net().eval()
    with torch.no_grad(), xsp.profile(levels=2, repeat=False) as prof:
        for _ in range(30):
            model(x())
    assert groups(prof) == {"Sequential 8×8": 30}
    assert rows(prof, "layer") == {"Sequential": 30, "0": 30, "1": 30, "2": 30}


def step_of(model: Any, *optimizers: Any, calls: int = 1, given: Any = None) -> None:
    for _ in range(calls):
        model(x() if given is None else given).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
    for optimizer in optimizers:
        optimizer.zero_grad()


def accumulated() -> dict[str, int]:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(5):
        step_of(model, optimizer, calls=4)
    for _ in range(3):
        model(x()).sum().backward()
    return {"Sequential training step 4 × 8×8": 5, "Sequential without backward 8×8": 3}


def two_optimizers_one_loss() -> dict[str, int]:
    model = net()
    halves = [torch.optim.SGD(part.parameters(), 0.1) for part in (model[0], model[2])]
    for _ in range(9):
        step_of(model, *halves)
    return {"Sequential training step 8×8": 9}


def in_eval_mode() -> dict[str, int]:
    model = net().eval()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(9):
        step_of(model, optimizer)
    return {"Sequential training step 8×8": 9}


def validation_between() -> dict[str, int]:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        for _ in range(4):
            step_of(model, optimizer)
        model.eval()
        with torch.no_grad():
            for _ in range(5):
                model(x(2))
        model.train()
    return {"Sequential training step 8×8": 12, "Sequential 2×8": 15}


def closures() -> dict[str, int]:
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2, line_search_fn=None)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (model(x()) - 1).square().sum()
        loss.backward()
        return loss

    for _ in range(6):
        optimizer.step(closure)
    return {"function training step": 6}


def generator_and_judge() -> dict[str, int]:
    made, judge = nn.Linear(8, 8), net()
    first = torch.optim.SGD(judge.parameters(), 0.1)
    second = torch.optim.SGD(made.parameters(), 0.1)
    for _ in range(10):
        first.zero_grad()
        with torch.no_grad():
            fake = made(x())
        (judge(x()).sum() - judge(fake).sum()).backward()
        first.step()
        second.zero_grad()
        judge(made(x())).sum().backward()
        second.step()
    return {
        "Sequential training step 2 × 8×8": 10,
        "Linear training step 8×8": 10,
        "Linear 8×8": 10,
    }


def no_optimizer() -> dict[str, int]:
    model = net()
    for _ in range(7):
        model(x()).sum().backward()
    return {"Sequential training step 8×8": 7}


def teacher() -> dict[str, int]:
    model, wise = net(), net(8).eval()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(9):
        with torch.no_grad():
            wanted = wise(x())
        (model(x()) - wanted).sum().backward()
        optimizer.step()
    return {"Sequential training step 8×8": 9, "Sequential (2) 8×8": 9}


PROGRAMS = [
    accumulated, two_optimizers_one_loss, in_eval_mode, validation_between, closures,
    generator_and_judge, no_optimizer,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
def test_training_steps_are_cut_by_looking_ahead(program: Callable[[], dict[str, int]]) -> None:
    with xsp.profile(levels=2, repeat=False) as prof:
        expected = program()
    told = groups(prof)
    if program is closures:  # the step's own name is that of what its optimizer calls
        assert sum(count for name, count in told.items() if "training step" in name) == 6
    else:
        assert told == expected


def test_a_teacher_is_no_part_of_the_step_and_has_a_name_of_its_own() -> None:
    with xsp.profile(levels=2, repeat=False) as prof:
        teacher()
    told = groups(prof)
    assert sum(n for name, n in told.items() if "training step" in name) == 9
    assert sum(n for name, n in told.items() if "training step" not in name) == 9


def test_a_loss_within_a_step_is_a_row_and_a_module_without_weights_outside_is_named() -> None:
    network, loss, softmax = nn.Linear(8, 4), nn.CrossEntropyLoss(), nn.Softmax(dim=-1)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    batch, target, many = torch.randn(16, 8), torch.randint(4, (16,)), torch.randn(500, 1000)
    with xsp.profile(levels=2) as prof:
        for _ in range(10):
            optimizer.zero_grad()
            loss(network(batch), target).backward()
            optimizer.step()
    assert "CrossEntropyLoss" in prof.trace.layers["name"].to_list()
    assert "passed-over" not in [warning.code for warning in prof.trace.warnings]
    with xsp.profile(levels=2) as prof:
        for _ in range(10):
            softmax(many)
            with torch.no_grad():
                network(batch)
    passed = [each.message for each in prof.trace.warnings if each.code == "passed-over"]
    assert passed[0].startswith("10 × Softmax, ")


def test_a_skipped_step_makes_the_next_one_longer_and_the_row_says_so() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with xsp.profile(levels=2, repeat=False) as prof:
        for number in range(9):
            model(x()).sum().backward()
            if number % 3 != 1:
                optimizer.step()
    assert groups(prof) == {
        "Sequential training step 8×8": 3,
        "Sequential training step 2 × 8×8": 3,
    }


def test_a_call_that_raises_is_told_and_the_exception_passes() -> None:
    class Raises(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.calls = nn.Linear(8, 8), 0

        def forward(self, value: Any) -> Any:
            self.calls += 1
            made = self.inner(value)
            if self.calls % 4 == 0:
                raise ValueError("the fourth")
            return made

    model = Raises().eval()
    raised = 0
    with torch.no_grad(), xsp.profile(levels=2, repeat=False) as prof:
        for _ in range(20):
            try:
                model(x())
            except ValueError:
                raised += 1
    assert raised == 5
    assert groups(prof) == {"Raises 8×8": 20}
    [said] = [p.message for p in prof.trace.warnings if p.code == "raised"]
    assert said.startswith("5 calls")
    layers = prof.trace.spans.unnest("attributes").filter(kind="layer", name="Raises")
    assert layers["error_calls"].sum() == 5
    assert layers["error"].drop_nulls().unique().to_list() == ["ValueError"]


def test_a_traceback_shows_pytorchs_own_line() -> None:
    class Bad(nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, value: Any) -> Any:
            raise KeyError(value)

    with xsp.profile(levels=2, repeat=False):
        try:
            Bad()(1)
        except KeyError as error:
            shown = "".join(traceback.format_tb(error.__traceback__))
    assert "self._call_impl(*args, **kwargs)" in shown


def test_calls_of_many_threads_are_all_counted() -> None:
    model = net().eval()

    def work(_: int) -> None:
        with torch.no_grad():
            model(x())

    with ThreadPoolExecutor(4) as pool:
        with xsp.profile(levels=2, repeat=False) as prof:
            list(pool.map(work, range(200)))
        assert groups(prof) == {"Sequential 8×8": 200}
    spans = prof.trace.spans.unnest("attributes").filter(kind="layer")
    assert set(spans["name"]) == {"Sequential", "0", "1", "2"}


def test_self_times_of_calls_on_two_threads_sum_to_the_time_in_which_they_ran() -> None:
    model, x = net(), torch.ones(2, 8)
    with xsp.profile(levels=2, repeat=False, progress=False) as prof, ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: model(x), range(60)))
    prof.trace.check()
    for trace in prof.groups.values():
        trace.check()
        spans = trace.spans
        assert spans["self_ns"].sum() == pytest.approx(spans["latency_ns"][0], rel=1e-6)


def test_a_thread_in_a_call_when_the_block_begins_tells_only_later_calls() -> None:
    begun, go_on = threading.Event(), threading.Event()

    class Waits(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, value: Any) -> Any:
            begun.set()
            go_on.wait(10)
            return self.layer(value)

    model = Waits().eval()
    thread = threading.Thread(target=lambda: [model(x()) for _ in range(3)])
    thread.start()
    begun.wait(10)
    with xsp.profile(levels=2, repeat=False) as prof:
        go_on.set()
        thread.join()
    assert sum(groups(prof).values()) == 2


def test_what_runs_between_calls_is_told_by_the_number_of_calls() -> None:
    model = net().eval()
    with torch.no_grad(), xsp.profile(levels=2, repeat=False) as prof:
        time.sleep(0.3)  # as long as an import may take: nothing of that is an operator
        for _ in range(40):
            model(torch.ones(8, 8))
    root = prof.trace.root.span_id
    [ones] = prof.trace.spans.filter(name="aten::ones", parent_id=root)["attributes"].to_list()
    assert 20 <= ones["calls"] <= 80


def test_a_budget_counts_from_the_first_call_and_what_is_not_seen_is_not_repeated() -> None:
    model = net().eval()
    with torch.no_grad(), xsp.profile(levels=2, budget=0.2) as prof:
        time.sleep(0.4)
        for _ in range(12):
            model(x())
    assert groups(prof) == {"Sequential 8×8": 12}


def test_what_runs_between_micro_batches_is_counted_by_them() -> None:
    model, big = net(), torch.rand(50, 50)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with xsp.profile(levels=2, repeat=False) as prof:
        for _ in range(30):
            for _ in range(4):
                loss = model(x()).sum()
                torch.bmm(big[None], big[None])
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    rows = prof.trace.spans.filter(name="aten::bmm")["attributes"].to_list()
    assert 100 <= sum(row["calls"] for row in rows) <= 140  # 120, of which windows saw some


def test_the_samples_of_unlike_micro_batches_are_added() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with xsp.profile(repeat=False) as prof:
        for _ in range(20):
            for size in (64, 4):
                model(torch.ones(size, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert {group["samples"] for group in prof.trace.metadata["groups"]} == {68}


def test_a_probe_between_batch_and_step_leaves_the_batch_in_its_iteration() -> None:
    model, probe = net(), nn.Sequential(nn.Linear(8, 8)).eval()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(240, 8)), 8)
    with xsp.profile(repeat=False) as prof:
        for step, (batch,) in enumerate(data):
            if step % 10 == 5:
                with torch.no_grad(), xsp.span("probe"):
                    probe(batch)
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    spans = prof.trace.spans
    loads = spans.filter(pl.col("name").is_in(["data loading", "first data loading"]))
    outside = loads.filter(parent_id=prof.trace.root.span_id)
    assert not outside.height


def test_the_region_of_a_generator_takes_turns_with_its_consumer() -> None:
    def batches() -> Iterator[int]:
        with xsp.span("batches"):
            for number in range(5):
                time.sleep(0.004)
                yield number

    with xsp.profile() as prof:
        for _ in batches():
            with xsp.span("work"):
                time.sleep(0.006)
    prof.trace.check()
    assert "at once" not in prof.trace.tree()


def test_outside_of_models_is_the_time_in_which_no_thread_ran_one() -> None:
    class Slow(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, values: Any) -> Any:
            time.sleep(0.02)
            return self.layer(values)

    models = [Slow().eval(), Slow().eval()]

    def calls(model: Any) -> None:
        with torch.inference_mode():
            for _ in range(10):
                model(x())

    with xsp.profile(levels=1, repeat=False) as prof:
        for model in models:  # one after the other: 0.4 s of models, and 0.2 s of nothing
            thread = threading.Thread(target=calls, args=(model,))
            thread.start()
            thread.join()
            time.sleep(0.1)
    spans = prof.trace.spans
    row = spans.row(0, named=True)
    inside = sum(
        spans.filter(pl.col("attributes").struct.field("is_group").fill_null(value=False))[
            "latency_ns"
        ]
    )
    elsewhere = row["attributes"]["elsewhere_ns"]
    assert elsewhere == pytest.approx(inside, rel=0.1)


@pytest.mark.forks
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_child_of_a_fork_runs_pytorchs_own_code_and_says_where_it_is_measured() -> None:
    model, original = net().eval(), nn.Module.__call__.__code__
    read, write = os.pipe()
    with torch.no_grad(), xsp.profile(levels=2, repeat=False) as prof:
        model(x())
        if os.fork() == 0:
            same = nn.Module.__call__.__code__ is original
            model(x())
            try:
                prof.trace  # noqa: B018
                said = "nothing"
            except xsp.MeasurementError as error:
                said = str(error)
            os.write(write, f"{same} {said}".encode())
            os._exit(0)
        os.wait()
        model(x())
    told = os.read(read, 1000).decode()
    os.close(read)
    os.close(write)
    assert told.startswith("True ")
    assert "in the parent process" in told
    assert groups(prof) == {"Sequential 8×8": 2}


def test_nothing_stays_behind() -> None:
    model = net().eval()
    code = nn.Module.__call__.__code__
    run = torch.autograd.graph._engine_run_backward.__code__
    before = sys.getprofile(), threading.active_count()

    def block() -> None:
        with torch.no_grad(), xsp.profile(levels=2, repeat=False) as prof:
            for _ in range(10):
                model(x())
        prof.trace  # noqa: B018

    for _ in range(3):
        block()
    gc.collect()
    objects = len(gc.get_objects())
    for _ in range(10):
        block()
    gc.collect()
    assert len(gc.get_objects()) - objects < 200
    assert nn.Module.__call__.__code__ is code
    assert torch.autograd.graph._engine_run_backward.__code__ is run
    assert (sys.getprofile(), threading.active_count()) == before


@pytest.mark.parametrize("how", ["block", "one call", "decorated", "marked"])
def test_a_model_dies_when_its_owner_lets_go(how: str) -> None:
    def once() -> weakref.ref[Any]:
        model, given = net().eval(), x()
        with torch.inference_mode():
            prof = xsp.profile(levels=2)
            if how == "decorated":
                predict = prof(lambda: model(given))
                for _ in range(5):
                    predict()  # type: ignore[no-untyped-call]
            else:
                with prof:
                    for _ in range(1 if how == "one call" else 5):
                        if how == "marked":
                            with prof.step("step"):
                                model(given)
                        else:
                            model(given)
            prof.trace  # noqa: B018
        return weakref.ref(model)

    kept = once()
    gc.collect()
    assert kept() is None


def test_an_id_that_is_used_again_is_never_named_wrongly() -> None:
    class Changing(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.kept, self.part = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, value: Any) -> Any:
            self.part = [nn.Linear, nn.Bilinear][0](8, 8)
            del self.part
            self.part = nn.Identity() if torch.rand(()) < 0.5 else nn.Linear(8, 8)
            return self.part(self.kept(value))

    model = Changing().eval()
    with torch.no_grad(), xsp.profile(levels=2, repeat=False) as prof:
        for _ in range(60):
            model(x())
    layers = prof.trace.spans.unnest("attributes").filter(kind="layer")
    known = layers.filter(pl.col("name") == "part")["module_class"].drop_nulls().unique()
    assert set(known) <= {"Identity", "Linear"}
    assert layers.filter(name="kept")["calls"].sum() == 60


def test_the_same_model_in_unlike_regions_and_with_unlike_arguments_stays_apart() -> None:
    class Steps(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, value: Any, steps: int = 1, mode: str = "fast") -> Any:
            for _ in range(steps):
                value = self.layer(value)
            return value

    model = Steps().eval()
    with torch.no_grad(), xsp.profile(levels=2, repeat=False) as prof:
        for name in ("draft", "final"):
            with xsp.span(name):
                for _ in range(4):
                    model(x())
        for _ in range(4):
            model(x(), steps=9)
            model(x(), mode="slow")
    told = groups(prof)
    assert sorted(told.values()) == [4, 4, 4, 4]
    assert any("steps=9" in name for name in told)
    assert any("mode='slow'" in name for name in told)
    assert any("in draft" in name for name in told)


def test_two_models_of_one_class_have_names_of_their_own() -> None:
    one, other = net().eval(), net().eval()
    with torch.no_grad(), xsp.profile(levels=2, repeat=False) as prof:
        for _ in range(4):
            one(x())
            other(x())
    assert groups(prof) == {"Sequential 8×8": 4, "Sequential (2) 8×8": 4}


def test_a_model_called_by_its_forward_names_its_layers() -> None:
    class Direct(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.head = nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, value: Any) -> Any:
            return self.head(self.encoder(value))

    model = Direct().eval()
    with torch.no_grad(), xsp.profile(levels=2, repeat=False) as prof:
        for _ in range(6):
            model.forward(x())
    assert groups(prof) == {"Direct.encoder 8×8": 6, "Direct.head 8×8": 6}


def test_a_hook_of_the_programs_is_called_as_often_as_the_program_calls() -> None:
    model, features = net().eval(), []
    model[1].register_forward_hook(lambda module, given, made: features.append(made))
    with torch.no_grad(), xsp.profile(levels=2):
        model(x())
    assert len(features) == 1


@pytest.mark.parametrize("repeat", [None, False])
def test_a_model_that_prints_prints_once(repeat: bool | None, capfd: Any) -> None:
    class Prints(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, value: Any) -> Any:
            sys.stdout.write("called\n")
            return self.layer(value)

    with torch.no_grad(), xsp.profile(levels=2, repeat=repeat, progress=False):
        Prints().eval()(x())
    assert capfd.readouterr().out.count("called") <= (2 if repeat is None else 1)


def test_one_call_is_told_as_measure_tells_it() -> None:
    model, given = net().eval(), x(64)
    with torch.inference_mode():
        with xsp.profile(levels=2, progress=False) as prof:
            model(given)
        measured = xsp.measure(model, given, levels=2, budget=2)
    assert prof.trace.spans["path"].to_list() == measured.spans["path"].to_list()
    assert prof.trace.root.runs > 3
    assert list(prof.groups) == ["Sequential 64×8"]


def test_the_users_profiler_may_begin_in_the_block_and_sees_its_own_calls_alone() -> None:
    model = net().eval()
    with torch.no_grad(), xsp.profile(levels=2, repeat=False) as prof:
        for _ in range(8):
            model(x())
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities) as theirs:
            for _ in range(6):
                model(x())
    assert sum(event.name == "aten::addmm" for event in theirs.events()) == 12
    assert groups(prof) == {"Sequential 8×8": 14}


def test_results_and_random_numbers_are_those_without_xsp() -> None:
    def train() -> list[Any]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(), nn.Linear(16, 4))
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(25):
            optimizer.zero_grad()
            model(torch.randn(8, 8)).square().sum().backward()
            optimizer.step()
        return [*model.parameters(), torch.rand(3)]

    plain = train()
    with xsp.profile(levels=2):
        profiled = train()
    assert all(torch.equal(a, b) for a, b in zip(plain, profiled, strict=True))


def test_prefill_and_decode_of_unlike_lengths_stay_apart() -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    config = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=1, vocab_size=50,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    tokens = torch.ones(1, 5, dtype=torch.long)
    with torch.no_grad(), xsp.profile(levels=2, repeat=False) as prof:
        made = model(tokens, use_cache=True)
        for _ in range(12):
            made = model(tokens[:, :1], cache=made.past_key_values, use_cache=True)
    told = groups(prof)
    assert told["LlamaForCausalLM prefill 1×5"] == 1
    decodes = {name: count for name, count in told.items() if " decode " in name}
    assert sum(decodes.values()) == 12
    assert all("cache ≤" in name for name in decodes)


def test_three_sizes_are_three_rows() -> None:
    model = net().eval()
    with torch.no_grad(), xsp.profile(levels=2, repeat=False) as prof:
        for size in (1, 16, 256):
            for _ in range(10):
                model(x(size))
    assert groups(prof) == {f"Sequential {size}×8": 10 for size in (1, 16, 256)}
    text = str(prof.trace)
    assert all(f"Sequential {size}×8" in text for size in (1, 16, 256))
    assert "Sequential 1×8 …" not in text


def test_calls_of_two_kinds_in_one_row_are_told_as_two() -> None:
    with xsp.profile(levels=2) as prof:
        for number in range(24):
            with xsp.span("job"):
                time.sleep(0.1 if number % 6 == 0 else 0.001)
    [kinds] = [
        kinds
        for kinds in prof.trace.spans.unnest("attributes")["two_kinds"].drop_nulls()
        if kinds in str(prof.trace)
    ]
    slow, quick = kinds.split(", ")
    assert slow.startswith("4 × 1")
    assert slow.endswith(" ms")
    assert quick.startswith("20 × ")


def test_a_script_that_is_terminated_leaves_its_trace(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(
        "import time, xsp\nwith xsp.span('served'):\n    print('ready', flush=True)\n"
        "    while True:\n        time.sleep(0.01)\n"
    )
    command = [sys.executable, "-m", "xsp", "profile", "-o", "job.xsp", "job.py"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        program.terminate()
        _, said = program.communicate(timeout=60)
    assert program.returncode == 128 + signal.SIGTERM
    assert "saved to job.xsp" in said
    assert "served" in set(xsp.load(tmp_path / "job.xsp").spans["name"])
