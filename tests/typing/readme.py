"""The Python examples of the README and of guides, word for word, for mypy; see test_readme.py."""

from __future__ import annotations

import torch
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from torch import nn

model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval().requires_grad_(False)
x = torch.ones(2, 8)
images = [torch.rand(2, 8) for _ in range(12)]
network = nn.Linear(8, 4)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
loader = [(torch.ones(2, 8), torch.zeros(2, dtype=torch.long)) for _ in range(12)]

resnet = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU()).eval().requires_grad_(False)
photo = torch.rand(4, 3, 64, 64)
exporter = InMemorySpanExporter()


class Language(nn.Module):  # type: ignore[misc]
    """A stand-in for a language model of transformers: a token in, logits of the next one out."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(16, 8), nn.Linear(8, 16)

    def forward(self, ids: torch.Tensor, use_cache: bool = False) -> torch.Tensor:
        """Return logits."""
        logits: torch.Tensor = self.head(self.embedding(ids))
        return logits

    def generate(self, ids: torch.Tensor, max_new_tokens: int) -> torch.Tensor:
        """Return the ids with new ones behind them: prefill, then a call for each token."""
        new = ids
        for _ in range(max_new_tokens):
            new = self(new, use_cache=True)[:, -1:].argmax(-1)
            ids = torch.cat((ids, new), 1)
        return ids


language_model = Language().eval()
prompts = [torch.zeros(1, 5, dtype=torch.long) for _ in range(2)]

# ruff: noqa: E402, T201  # the examples are kept as the pages have them

import xsp

with xsp.profile(levels=2) as prof:
    for batch, target in loader:
        optimizer.zero_grad()
        criterion(network(batch), target).backward()
        optimizer.step()

print(prof.trace)  # the tree
prof.trace.save("train.xsp")  # one Parquet file: polars and pandas read it
xsp.report(prof.trace, "train.html")

trace = xsp.measure(model, x, levels=2)
trace.save("model.xsp")
slowest = xsp.load("model.xsp").spans.sort("self_ns", descending=True).head(10)
print(slowest.select("path", "self_ns"))

import polars as pl

calls = xsp.measure(resnet, photo, levels=3).spans.filter(kind="call").unnest("attributes")
layer = pl.col("path").str.extract("^[^/]+/[^/]+/(.*?)/aten").alias("layer")
gflops = pl.col("flops") / pl.col("latency_ns")
print(calls.select(layer, "name", "implementation", "latency_ns", gflops=gflops))

with torch.inference_mode(), xsp.profile(levels=2) as prof:
    for prompt in prompts:
        with xsp.span("answer"):
            language_model.generate(prompt, max_new_tokens=40)
print(prof.trace)
for name, group in prof.groups.items():
    print(name, group.root.latency_ns)

profiler = xsp.profile(levels=2)


@profiler
def classify(image: torch.Tensor) -> int:
    with xsp.span("normalize"):
        image = (image - image.mean()) / image.std()
    return int(model(image).argmax())


for image in images:
    classify(image)
print(profiler.trace)

trace.export()  # Jaeger here, or what OTEL_EXPORTER_OTLP_ENDPOINT says
trace.export("model.pftrace")  # ui.perfetto.dev; .perfetto.json, .otlp.json, .parquet alike
trace.export("model.speedscope.json")  # speedscope.app; .folded for other flame graphs
trace.export("model.ctf")  # a folder for Trace Compass
trace.export(exporter)  # any OpenTelemetry SpanExporter
