from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

import xsp
from xsp.clock import SystemClock
from xsp.level import Kind
from xsp.provider import Records, Request
from xsp.testing import only_providers
from xsp_levels.framework.torch.provider import Torch
from xsp_levels.model import Model
from xsp_levels.stack import Stack

SAMPLED = Request(frozenset({Kind.REGION}), sampled=True)


def spin(seconds: float) -> None:
    """Let Python run for so long of the thread's self time, other programs aside."""
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


@pytest.mark.timing
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


def test_a_function_without_source_has_its_name_and_the_line_that_called_it() -> None:
    data = b"x" * 40_000_000

    def tokenize() -> None:
        hashlib.sha256(data)

    stack, records = sampled(tokenize)
    samples = stack.samples(records)
    ((function, file, line),) = (
        samples.group_by("function", "file", "line").len().sort("len")[-1:, :3].rows()
    )
    assert function == "openssl_sha256"
    assert file == __file__
    assert line == tokenize.__code__.co_firstlineno + 1


def test_nothing_is_armed_where_no_samples_are_asked_for() -> None:
    stack = Stack()
    stack.start(SystemClock(), Request(frozenset(Kind), detail=True))
    assert sys.getprofile() is None
    assert stack.samples(stack.stop()).is_empty()


def test_samples_are_taken_on_their_pass_alone() -> None:
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
    (warning,) = records.warnings
    assert "another profiler (function)" in warning


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


@pytest.mark.slow
def test_the_self_time_of_a_pipelines_preprocessing_is_its_tokenizers() -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = ["alpha", "beta", "gamma"]
    numbers = {word: number for number, word in enumerate(["[UNK]", "[PAD]", *words])}
    raw = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, unk_token="[UNK]"))
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, unk_token="[UNK]", pad_token="[PAD]", model_max_length=16
    )
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    configuration = transformers.BertConfig(vocab_size=5, intermediate_size=16, **sizes)
    classify = transformers.pipeline(
        "text-classification",
        model=transformers.BertForSequenceClassification(configuration).eval(),
        tokenizer=tokenizer,
        device="cpu",
    )
    text = " ".join(words * 2000)

    def run() -> Any:
        return classify(text, truncation=True, max_length=16)

    with only_providers(Model(), Torch(), Stack()), torch.inference_mode():
        trace = xsp.measure(run, levels=2, runs=10)
    spans = trace.spans.unnest("attributes")
    stage = spans.filter(pl.col("name") == "preprocess").row(0, named=True)
    assert stage["self_functions"][0] == "Tokenizer.encode_batch"
    assert stage["self_shares"][0] > 0.5
    assert "transformers/tokenization" in stage["self_lines"][0]
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
