from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from part_log import Said, marking

import xsp

transformers = pytest.importorskip(
    "transformers", reason="needs transformers: pip install transformers"
)
timm_utils = pytest.importorskip("timm.utils", reason="needs timm: pip install timm")


@pytest.fixture(autouse=True)
def tokenizers_set_no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")


def names(said: list[Said]) -> list[str]:
    return [part[0] for part in said]


def tokenizer() -> Any:
    tokenizers = pytest.importorskip("tokenizers", reason="comes with transformers")
    words = {"[UNK]": 0, "hello": 1, "[PAD]": 2}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="[UNK]", pad_token="[PAD]"
    )


def bert(kind: str) -> Any:
    config = transformers.DistilBertConfig(
        vocab_size=10, dim=32, n_heads=2, n_layers=1, hidden_dim=64
    )
    return getattr(transformers, f"DistilBertFor{kind}")(config).eval()


@pytest.fixture(scope="module")
def gpt() -> Any:
    config = transformers.GPT2Config(
        n_layer=1, n_embd=16, n_head=2, vocab_size=50, bos_token_id=0, eos_token_id=None
    )
    return transformers.GPT2LMHeadModel(config).eval()


@pytest.mark.slow
def test_generate_is_one_part(gpt: Any) -> None:
    ids = torch.ones(1, 4, dtype=torch.long)
    plain = gpt.generate(ids, max_new_tokens=3, do_sample=False)
    with marking() as said:
        watched = gpt.generate(ids, max_new_tokens=3, do_sample=False)
    assert names(said) == ["generate"]
    assert torch.equal(plain, watched)


@pytest.mark.slow
def test_generation_is_exported_with_opentelemetrys_names(gpt: Any, tmp_path: Path) -> None:
    ids = torch.ones(2, 4, dtype=torch.long)
    with torch.inference_mode(), xsp.profile(levels="layers", repeat=False, progress=False) as prof:
        for _ in range(2):
            gpt.generate(ids, max_new_tokens=3, do_sample=False)
    [told] = prof.trace.spans.filter(name="generate").iter_rows(named=True)
    known = told["attributes"]
    assert known["generating_model"] == "GPT2LMHeadModel"
    assert (known["input_tokens"], known["output_tokens"]) == (8, 6)
    assert 0 < known["first_token_s"] < told["latency_ns"] / 1e9
    path = tmp_path / "generation.otlp.json"
    prof.trace.export(path)
    for name in ("operation.name", "request.model", "usage.input_tokens", "usage.output_tokens"):
        assert f"gen_ai.{name}" in path.read_text()
    assert "gen_ai.response.time_to_first_chunk" in path.read_text()


@pytest.mark.slow
def test_a_pipeline_is_told_step_by_step() -> None:
    classify = transformers.pipeline(
        "text-classification", model=bert("SequenceClassification"), tokenizer=tokenizer()
    )
    plain = classify("hello you")
    with marking() as said:
        assert classify("hello you") == plain
    assert names(said) == ["preprocess", "forward", "postprocess", "pipeline"]
    *steps, whole = said
    assert all(whole[1] <= start < end <= whole[2] for _, start, end, *_ in steps)


@pytest.mark.slow
def test_a_pipeline_made_inside_is_told_step_by_step() -> None:
    with marking() as said:
        classify = transformers.pipeline(
            "token-classification", model=bert("TokenClassification"), tokenizer=tokenizer()
        )
        classify("hello you")
    count = Counter(names(said))
    assert count["pipeline"] == count["forward"] == 1
    assert count["preprocess"] >= 1  # a generator function: its items and its end
    assert count["postprocess"] == 1


@pytest.mark.slow
def test_a_batched_pipeline_preprocesses_while_it_loads_data() -> None:
    classify = transformers.pipeline(
        "text-classification", model=bert("SequenceClassification"), tokenizer=tokenizer()
    )
    with marking() as said:
        classify(["hello"] * 3, batch_size=2)
    loading = [part for part in said if part[0] == "data loading"]
    inside = [
        sum(batch[1] <= part[1] and part[2] <= batch[2] for part in said if part[0] == "preprocess")
        for batch in loading
    ]
    assert inside == [2, 1]


def test_moving_averages_of_timm_are_told(gpt: Any) -> None:
    with marking() as said:
        for average in (timm_utils.ModelEma, timm_utils.ModelEmaV2, timm_utils.ModelEmaV3):
            average(gpt).update(gpt)
    assert names(said) == ["moving average"] * 3
