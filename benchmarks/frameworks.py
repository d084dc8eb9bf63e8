"""Programs that frameworks write: generate(), a pipeline, the HF Trainer, a Lightning fit."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from clocked import INFERENCE, Clock, Label, Program
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import nn
from torch.nn import functional
from transformers import (
    DistilBertConfig,
    DistilBertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    PrinterCallback,
    Trainer,
    TrainingArguments,
    pipeline,
)
from transformers.utils.logging import set_verbosity_error

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "dog", "run", "far", "away"]
SPECIAL = ["[UNK]", "[PAD]", "[CLS]", "[SEP]"]
TOKENS = 24  # that are generated for each prompt
PROMPTS = 5


def gpt2(clock: Clock) -> Program:
    """Text from a small GPT-2."""
    config = GPT2Config(vocab_size=500, n_embd=128, n_layer=4, n_head=4, n_positions=128)
    return _generation(clock, GPT2LMHeadModel(config))


def llama(clock: Clock) -> Program:
    """Text from a small Llama."""
    config = LlamaConfig(
        vocab_size=500,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return _generation(clock, LlamaForCausalLM(config))


def _generation(clock: Clock, model: Any) -> Program:
    model.eval()
    prompts = [torch.randint(4, 500, (1, 16)) for _ in range(PROMPTS)]
    name = type(model).__name__

    def label(input_ids: torch.Tensor | None = None, **_: Any) -> Label:
        return Label(name, "prefill" if input_ids is None or input_ids.shape[1] > 1 else "decode")

    clock.calls(model, label)

    def run() -> list[torch.Tensor]:
        return [_generate(model, prompt) for prompt in prompts]

    return Program(run, clock, {"model": model})


def _generate(model: Any, prompt: torch.Tensor) -> torch.Tensor:
    tokens: torch.Tensor = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=TOKENS,
        min_new_tokens=TOKENS,
        do_sample=True,
        pad_token_id=0,
    )
    return tokens


def _distilbert() -> DistilBertForSequenceClassification:
    config = DistilBertConfig(
        vocab_size=len(WORDS + SPECIAL), dim=32, n_layers=2, n_heads=4, hidden_dim=64
    )
    return DistilBertForSequenceClassification(config)


def _tokenizer() -> PreTrainedTokenizerFast:
    plain = Tokenizer(WordLevel({word: n for n, word in enumerate(SPECIAL + WORDS)}, "[UNK]"))
    plain.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="[UNK]", pad_token="[PAD]")


def classification(clock: Clock) -> Program:
    """A classifier that labels one sentence at a time; lengths vary freely."""
    model = _distilbert().eval()
    classify = pipeline("text-classification", model=model, tokenizer=_tokenizer(), device="cpu")
    lengths = torch.randint(4, 40, (150,)).tolist()
    texts = [" ".join(WORDS[(n + i) % len(WORDS)] for i in range(n)) for n in lengths]
    name = type(model).__name__
    clock.calls(model, lambda *_, **__: Label(name))

    def run() -> Any:
        return [classify(text) for text in texts]

    return Program(run, clock, {"model": model})


def trainer(clock: Clock) -> Program:
    """The Trainer of transformers: 80 steps, and a step."""
    model = _distilbert()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    rows = [
        {"input_ids": torch.randint(4, 16, (16,)), "labels": torch.tensor(n % 2)}
        for n in range(320)
    ]
    name = type(model).__name__
    with tempfile.TemporaryDirectory() as folder:
        asked = TrainingArguments(
            folder,
            max_steps=80,
            per_device_train_batch_size=4,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
            logging_strategy="no",
        )
    clock.calls(model, lambda *_, **__: Label(name))
    clock.steps([model], optimizer)
    fit = Trainer(
        model, asked, train_dataset=rows, eval_dataset=rows[:80], optimizers=(optimizer, None)
    )
    fit.remove_callback(PrinterCallback)

    def run() -> None:
        fit.train()
        fit.evaluate()

    return Program(run, clock, {"model": model, "optimizer": optimizer})


def lightning(clock: Clock) -> Program:
    """A fit of Lightning: its sanity check, and ten epochs of training and validation."""
    import lightning as L  # noqa: N812, PLC0415  # as its users call it; may not be installed

    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)
    data = torch.utils.data.TensorDataset(torch.randn(3200, 64), torch.randint(0, 10, (3200,)))
    batches, few = (
        torch.utils.data.DataLoader(part, batch_size=32)
        for part in (data, torch.utils.data.Subset(data, range(640)))
    )

    class Module(L.LightningModule):  # type: ignore[misc, name-defined]  # no types without it
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return functional.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch: Any, _: int) -> None:
            functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer

    clock.calls(net, lambda *_: Label("Sequential", INFERENCE))
    clock.steps([net], optimizer)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    fit = L.Trainer(max_epochs=10, accelerator="cpu", enable_checkpointing=False, **quiet)
    module = Module()

    def run() -> None:
        fit.fit(module, batches, few)

    return Program(run, clock, {"model": net, "optimizer": optimizer})


def be_quiet() -> None:
    """Keep frameworks from speaking of themselves between the lines of the table."""
    set_verbosity_error()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)


FRAMEWORKS: dict[str, Callable[[Clock], Program]] = {
    "gpt2": gpt2,
    "llama": llama,
    "region": classification,
}
MISSING = [name for name in ("accelerate", "lightning") if find_spec(name) is None]
if "accelerate" not in MISSING:
    FRAMEWORKS["trainer"] = trainer
if "lightning" not in MISSING:
    FRAMEWORKS["lightning"] = lightning
