from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import CodeType
from typing import Any

import numpy as np
import polars as pl
import pytest

import xsp
from xsp import tracer
from xsp.clock import SystemClock
from xsp.level import Kind
from xsp.provider import Records, Request, pack, unpack
from xsp.testing import only_providers
from xsp_levels.framework.torch.provider import Torch
from xsp_levels.model import Model
from xsp_levels.stack import INTERVAL_NS, Stack, StackRecords, _records, _Watch

SAMPLED = Request(frozenset({Kind.PIPELINE}), sampled=True)


def spin(seconds: float) -> None:
    """Let Python run for so long of the thread's own time, other programs aside."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def sampled(work: Callable[[], Any]) -> tuple[Stack, Records]:
    stack = Stack()
    stack.start(SystemClock(), SAMPLED)
    try:
        work()
    finally:
        records = stack.stop()
    return stack, records


def shares(stack: Stack, records: Records) -> dict[str, float]:
    functions = stack.samples(records)["function"].to_list()
    return {name: count / len(functions) for name, count in Counter(functions).items()}


def nothing() -> None:
    pass


def many_calls(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        for _ in range(50):
            nothing()


def no_calls(turns: int) -> None:
    total = 0
    for number in range(turns):
        total += number


def test_functions_have_their_share_of_the_time_whether_they_call_others_or_not() -> None:
    own = {"many": 0.0, "none": 0.0}

    def work() -> None:
        for _ in range(5):
            begin = time.thread_time()
            many_calls(0.03)
            middle = time.thread_time()
            no_calls(1_500_000)
            own["many"] += middle - begin
            own["none"] += time.thread_time() - middle

    found = shares(*sampled(work))
    many = sum(found.get(name, 0) for name in ("many_calls", "nothing", "thread_time"))
    assert found["no_calls"] == pytest.approx(own["none"] / sum(own.values()), abs=0.1)
    assert many == pytest.approx(own["many"] / sum(own.values()), abs=0.1)


def test_two_loops_have_the_shares_of_their_turns() -> None:
    def shorter() -> None:
        no_calls(600_000)

    def longer() -> None:
        total = 0
        for number in range(1_400_000):
            total += number

    def work() -> None:
        for _ in range(5):
            shorter()
            longer()

    stack, records = sampled(work)
    found = {name.rpartition(".")[2]: share for name, share in shares(stack, records).items()}
    assert found["longer"] == pytest.approx(0.7, abs=0.1)
    assert found["no_calls"] == pytest.approx(0.3, abs=0.1)


def test_a_function_without_source_has_its_name_and_the_line_that_called_it() -> None:
    data = b"x" * 40_000_000

    def tokenise() -> None:
        hashlib.sha256(data)

    stack, records = sampled(tokenise)
    samples = stack.samples(records)
    ((function, file, line),) = (
        samples.group_by("function", "file", "line").len().sort("len")[-1:, :3].rows()
    )
    assert function == "openssl_sha256"
    assert file == __file__
    assert line == tokenise.__code__.co_firstlineno + 1


def test_samples_lie_in_the_time_that_was_sampled_on_its_thread() -> None:
    begin = SystemClock.now()
    stack, records = sampled(lambda: spin(0.02))
    samples = stack.samples(records)
    assert samples["thread"].unique().to_list() == [threading.get_ident()]
    assert samples["time_ns"].is_between(begin, SystemClock.now()).all()
    assert samples["time_ns"].is_sorted()


def test_nothing_is_armed_where_no_samples_are_asked_for() -> None:
    stack = Stack()
    stack.start(SystemClock(), Request(frozenset(Kind), detail=True))
    assert sys.getprofile() is None
    assert stack.samples(stack.stop()).is_empty()


def test_samples_are_taken_on_their_rung_alone() -> None:
    seen: set[bool] = set()

    class Watching(Stack):
        def start(self, clock: Any, request: Request) -> None:
            super().start(clock, request)
            seen.add(request.sampled)
            assert (sys.getprofile() is not None) == request.sampled

    torch = pytest.importorskip("torch")
    with only_providers(Model(), Torch(), Watching()), torch.inference_mode():
        xsp.measure(torch.nn.Linear(2, 2), torch.ones(1, 2), levels=2, runs=2)
    assert seen == {False, True}


def test_another_profiler_is_left_alone_and_named() -> None:
    def profile(frame: Any, event: str, argument: Any) -> None:
        pass

    sys.setprofile(profile)
    try:
        stack, records = sampled(lambda: None)
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)
    assert stack.samples(records).is_empty()
    (problem,) = records.problems
    assert "another profiler (function)" in problem


def test_stopped_from_another_thread_the_next_sample_ends_it() -> None:
    stack = Stack()
    stack.start(SystemClock(), SAMPLED)
    thread = threading.Thread(target=stack.stop)
    thread.start()
    thread.join()
    spin(0.01)
    assert sys.getprofile() is None


@pytest.mark.forks
def test_a_forked_child_is_not_sampled() -> None:
    stack = Stack()
    stack.start(SystemClock(), SAMPLED)
    child = os.fork()
    if not child:
        spin(0.01)
        os._exit(sys.getprofile() is not None)
    _, status = os.waitpid(child, 0)
    stack.stop()
    assert os.waitstatus_to_exitcode(status) == 0


def test_an_exception_passes_through_and_nothing_stays() -> None:
    def fail() -> None:
        spin(0.005)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        sampled(fail)
    assert sys.getprofile() is None


def test_records_are_the_same_from_a_file() -> None:
    stack, records = sampled(lambda: spin(0.01))
    assert stack.samples(unpack(stack, pack(stack, records))).equals(stack.samples(records))
    nothing = stack.stop()
    assert stack.samples(unpack(stack, pack(stack, nothing))).is_empty()


@pytest.mark.slow
def test_the_own_time_of_a_pipelines_preprocessing_is_its_tokenisers() -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = ["alpha", "beta", "gamma"]
    numbers = {word: number for number, word in enumerate(["[UNK]", "[PAD]", *words])}
    raw = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, unk_token="[UNK]"))
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokeniser = transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, unk_token="[UNK]", pad_token="[PAD]", model_max_length=16
    )
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    configuration = transformers.BertConfig(vocab_size=5, intermediate_size=16, **sizes)
    classify = transformers.pipeline(
        "text-classification",
        model=transformers.BertForSequenceClassification(configuration).eval(),
        tokenizer=tokeniser,
        device="cpu",
    )
    text = " ".join(words * 2000)

    def run() -> Any:
        return classify(text, truncation=True, max_length=16)

    with only_providers(Model(), Torch(), Stack()), torch.inference_mode():
        trace = xsp.measure(run, levels=2, runs=10)
    spans = trace.spans.unnest("attributes")
    stage = spans.filter(pl.col("name") == "preprocess").row(0, named=True)
    assert stage["own_functions"][0] == "Tokenizer.encode_batch"
    assert stage["own_shares"][0] > 0.5
    assert "transformers/tokenization" in stage["own_lines"][0]
    assert " in encode_batch (tokenization" in trace.tree(width=140)


COLLECTS = """
import gc, time
from xsp.clock import SystemClock
from xsp_levels.stack import INTERVAL_NS, _Watch

def collected(phase, info):
    end = time.monotonic_ns() + 2 * INTERVAL_NS
    while time.monotonic_ns() < end:
        pass

def work():
    return []

gc.callbacks.append(collected)
watch = _Watch(SystemClock.now)
watch.begin()
gc.set_threshold(1)
found = [work() for _ in range(50)]
print(len(watch.end().time_ns) > 0)
"""


def test_functions_that_run_while_garbage_is_collected_are_sampled() -> None:
    done = subprocess.run([sys.executable, "-c", COLLECTS], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"True\n")


CODE: CodeType = spin.__code__


def taken(due: list[int], *seen: tuple[int, float, int]) -> list[int]:
    events: list[Any] = [(at, busy, switches, None, [CODE, 0]) for at, busy, switches in seen]
    return _records(1, due, events, began=(1.0, 4)).time_ns.tolist()


def test_a_long_call_is_as_many_samples_as_it_lasts() -> None:
    step = INTERVAL_NS
    assert taken([1000], (1000, 1.0, 4)) == [1000]
    assert taken([1000], (1000 + 3 * step, 1.0, 4)) == [1000 + n * step for n in range(4)]


def test_time_in_which_others_ran_is_no_time_of_the_function() -> None:
    second = 10**9
    waited, robbed = taken([0], (second, 1.0, 4)), taken([0], (second, 1.0, 5))
    partly = taken([0], (second, 1.0 + 3.5 * INTERVAL_NS / 1e9, 5))
    assert len(waited) == 1 + second // INTERVAL_NS
    assert robbed == [0]
    assert len(partly) == 4


def test_without_samples_the_records_are_arrays_of_integers() -> None:
    empty: StackRecords = _records(1, [5], [])
    assert empty.time_ns.dtype == empty.place.dtype == empty.stack.dtype == np.int64
    assert Stack().samples(Records(empty)).schema["function"] == pl.String


def test_records_of_before_callers_were_kept_can_be_read() -> None:
    places = (("f", "a.py", 3), ("g", "a.py", 7))
    records = StackRecords(1, np.array([5, 6]), np.array([1, 0]), places)
    samples = Stack().samples(Records(records))
    assert samples["function"].to_list() == ["g", "f"]
    assert samples["callers"].to_list() == [None, None]


def test_a_sample_has_its_callers_each_with_the_line_that_it_was_at() -> None:
    def outer() -> None:
        def within() -> None:
            spin(0.02)  # the line after this function's

        within()

    stack, records = sampled(outer)
    rows = stack.samples(records).filter(pl.col("function") == "spin")
    first = outer.__code__.co_firstlineno
    callers = json.loads(rows["callers"][0])
    named = [(function.rpartition(".")[2], line) for function, _, line in callers]
    assert named[-2:] == [("outer", first + 4), ("within", first + 2)]
    assert {file for _, file, _ in callers[-3:]} == {__file__}
    assert rows.height > 10


def test_a_function_without_source_is_called_by_the_one_that_it_is_in() -> None:
    def hash_it() -> None:
        hashlib.sha256(b"x" * 20_000_000)

    stack, records = sampled(hash_it)
    (row,) = stack.samples(records).filter(pl.col("function") == "openssl_sha256")[:1].to_dicts()
    caller, _, line = json.loads(row["callers"])[-1]
    assert caller.endswith("hash_it")
    assert line == row["line"] == hash_it.__code__.co_firstlineno + 1


@pytest.mark.parametrize("leave", [tracer.leave_evaluation, tracer.may_leave_evaluation])
def test_a_program_is_left_alone_when_it_evaluates_nothing_for_long(
    leave: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xsp_levels.stack._MOST_BETWEEN", 20)
    here = threading.get_ident()

    def program() -> None:
        tracer.enter_evaluation(here)
        spin(0.01)
        assert sys.getprofile() is not None
        leave(here)  # a training step may be over, or go on
        many_calls(0.02)
        assert sys.getprofile() is None

    tracer.watch(SystemClock())
    try:
        stack, records = sampled(program)
    finally:
        tracer.unwatch()
    assert Counter(stack.samples(records)["function"])["many_calls"] <= 20


def test_a_program_may_end_profiling_for_a_while_and_set_what_there_was() -> None:
    before = sys.setprofile

    def program() -> None:
        for _ in range(20):
            spin(0.002)
            found = sys.getprofile()
            assert found is not None
            sys.setprofile(None)
            many_calls(0.002)
            sys.setprofile(found)

    stack, records = sampled(program)
    functions = Counter(stack.samples(records)["function"])
    assert functions["spin"] >= 20
    assert functions["many_calls"] < functions["spin"] / 10
    assert sys.setprofile is before
    assert sys.getprofile() is None


def test_what_calls_for_a_sample_is_kept_alive_until_it_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("xsp_levels.stack.INTERVAL_NS", 1)  # due at once, within `_wait` itself
    kept: list[bool] = []
    wait = _Watch._wait

    def waiting(watch: _Watch, now: int) -> None:
        calling = sys.getprofile()
        if calling is not None:  # else it is not called for a sample
            kept.append(any(calling is each for each in watch._set_so_far))
        wait(watch, now)

    def program() -> None:
        for _ in range(20):
            found = sys.getprofile()
            sys.setprofile(None)
            sys.setprofile(found)

    monkeypatch.setattr(_Watch, "_wait", waiting)
    sampled(program)
    assert len(kept) > 20
    assert all(kept)


def test_what_the_program_has_set_between_two_evaluations_is_the_program_s() -> None:
    def own(frame: Any, event: str, argument: Any) -> None:
        pass

    try:
        stack, records = sampled(lambda: sys.setprofile(own))
        assert sys.getprofile() is own
    finally:
        sys.setprofile(None)
    assert stack.samples(records).height >= 0
