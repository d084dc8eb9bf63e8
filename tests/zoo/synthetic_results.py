"""Makes plausible results of a zoo that nobody measured.

For tests and benchmarks of what reads results, at sizes that no test can measure.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.answer.zoo.row import SCHEMA, THIRDS, TYPES, Row
from xsp.answer.zoo.table import with_best

BATCHES = 8  # of each curve: 1, 2, 4 … 128
FAMILIES = ("ResNet", "VGG", "MobileNet", "ViT", "BERT", "GPT", "EfficientNet", "DenseNet")
_PEAK_FLOPS, _PEAK_BYTES = 2e12, 1e11

Floats = NDArray[np.float64]


def rows(count: int, *, seed: int = 0, machines: int = 1) -> list[Row]:
    """Return so many results as rows."""
    return frame(count, seed=seed, machines=machines).to_dicts()


def frame(count: int, *, seed: int = 0, machines: int = 1, slower: float = 1.0) -> pl.DataFrame:
    """Return so many results: batches vary fastest, then machines, then models.

    Args:
        count: Number of rows.
        seed: Of the random numbers; the models are the same for all.
        machines: On how many machines each model was measured.
        slower: Factor of all latencies.
    """
    place = np.arange(count)
    batch, machine = 1 << place % BATCHES, place // BATCHES % machines
    model = place // (BATCHES * machines)
    given = {
        **_identity(model, batch, machine),
        **_times(model, batch, machine, np.random.default_rng(seed), slower),
        **_work(model, batch),
        **_shares(model),
    }
    known = pl.DataFrame({name: pl.Series(values) for name, values in given.items()})
    full = known.with_columns(
        pl.lit(None, dtype=dtype).alias(name) for name, dtype in SCHEMA.items() if name not in given
    )
    return with_best(_some_without(full.select(pl.col(n).cast(d) for n, d in SCHEMA.items())))


def _identity(model: Any, batch: Any, machine: Any) -> dict[str, Any]:
    family = [FAMILIES[number % len(FAMILIES)] for number in model]
    names = [f"timm:{kind.lower()}_{number}" for kind, number in zip(family, model, strict=True)]
    shared = {"compiled": False, "device": "cpu", "framework": "torch", "precision": "float32"}
    ids = [f"{number:08x}" for number in machine]
    bases = [
        json.dumps({"cpu": f"CPU {n}", "host id": f"{n:08x}", "torch": "2.9"}) for n in machine
    ]
    return {
        "model": names, "target": names, "family": family, "batch": batch,
        "accuracy_pct": 60 + 25 * _unit(model, 1),
        "framework": ["torch"] * len(batch), "precision": ["float32"] * len(batch),
        "compiled": np.zeros(len(batch), bool), "device": ["cpu"] * len(batch),
        "train": np.zeros(len(batch), bool),
        "settings": [json.dumps({"batch": int(size), **shared}) for size in batch],
        "status": ["measured"] * len(batch),
        "warnings": [["some latencies are hardly known"] if n % 9 == 0 else [] for n in model],
        "warning_codes": [["wide-interval"] if n % 9 == 0 else [] for n in model],
        "trace": [f"traces/{n.split(':')[1]}.b{b}.xsp" for n, b in zip(names, batch, strict=True)],
        "started": ["2026-01-01T00:00:00+00:00"] * len(batch), "took_s": 8 + 4 * _unit(model, 2),
        "host": [f"node{number}" for number in machine], "machine": ids,
        "cpu": [f"CPU {number}" for number in machine], "cores": np.full(len(batch), 8.0),
        "xsp_version": ["0.1.0"] * len(batch), "basis": bases,
    }  # fmt: skip


def _times(model: Any, batch: Any, machine: Any, rng: Any, slower: float) -> dict[str, Any]:
    """Return latencies of machines that work on some samples at once, one slower than the other."""
    at_once = 1 << (1 + (5 * _unit(model, 3)).astype(int))
    one = 1e6 * 10 ** (2.5 * _unit(model, 4)) * (1 + 0.3 * machine) * slower
    latency = one * np.maximum(1.0, batch / at_once) * rng.normal(1, 0.01, len(batch))
    reach = 0.01 + 0.04 * _unit(model, 5)
    low, high = latency * (1 - reach), latency * (1 + reach)
    rates = (1e9 * batch / time for time in (latency, high, low))
    throughput = dict(zip(("", "low_", "high_"), rates, strict=True))
    return {
        "latency_ns": latency, "latency_low_ns": low, "latency_high_ns": high,
        **{f"throughput_{end}per_s": rate for end, rate in throughput.items()},
        "runs": 20 + model % 50, "overhead_pct": 40 * _unit(model, 6),
        "layers": 20 + model % 300, "kernel_ns": 0.9 * latency,
        "kernel_pct": np.full(len(batch), 90.0),
    }  # fmt: skip


def _work(model: Any, batch: Any) -> dict[str, Any]:
    flops = batch * 10 ** (8 + 2.5 * _unit(model, 4))
    intensity = 2 + 40 * _unit(model, 7)
    moved = flops / intensity
    parameters = 1e6 * 10 ** (2 * _unit(model, 8))
    return {
        "flops": flops.astype(int), "read_bytes": (0.6 * moved).astype(int),
        "write_bytes": (0.4 * moved).astype(int), "work_source": ["analytical"] * len(batch),
        "flops_per_byte": intensity, "flops_per_s": _PEAK_FLOPS * (0.1 + 0.4 * _unit(model, 9)),
        "ideal_flops_per_byte": np.full(len(batch), _PEAK_FLOPS / _PEAK_BYTES),
        "peak_flops_per_s": np.full(len(batch), _PEAK_FLOPS),
        "peak_bytes_per_s": np.full(len(batch), _PEAK_BYTES),
        "bound": ["memory" if each < _PEAK_FLOPS / _PEAK_BYTES else "compute"
                  for each in intensity],
        "roof_pct": 10 + 40 * _unit(model, 9), "roof_source": ["synthetic"] * len(batch),
        "peak_memory_bytes": (5e8 + 4 * parameters + 1e6 * batch).astype(int),
        "parameter_bytes": (4 * parameters).astype(int), "peak_bytes": 1_000_000 * batch,
    }  # fmt: skip


def _shares(model: Any) -> dict[str, Any]:
    """Return shares of types of layers, and of thirds, that sum up to 100 %."""
    parts = np.stack([_unit(model, 20 + number) ** 4 for number in range(len(TYPES))])
    parts = 100 * parts / parts.sum(axis=0)
    found: dict[str, Any] = dict(zip(TYPES, parts, strict=True))
    found |= {"time.unknown_pct": np.zeros(len(model))}
    found["convolution_pct"] = found["time.convolution_pct"]
    for number, part in enumerate(("latency", "allocated", "flops", "accessed")):
        thirds = np.stack([_unit(model, 50 + 3 * number + each) for each in range(3)])
        shares = 100 * thirds / thirds.sum(axis=0)
        found |= {f"{third}_{part}_pct": shares[n] for n, third in enumerate(THIRDS)}
    shares = parts.T.round(2)
    found["primitives"] = [
        json.dumps({"onednn convolution": float(one[2]), "onednn matmul": float(one[4])})
        for one in shares
    ]
    return found


def _unit(model: Any, salt: int) -> Floats:
    """Return a number from 0 to 1 for each model, the same wherever it is asked for."""
    found: Floats = (np.sin(model * 12.9898 + salt * 78.233) * 43758.5453) % 1.0
    return found


def _some_without(full: pl.DataFrame) -> pl.DataFrame:
    """Return the results with some models in them that could not be measured to the end."""
    number = pl.col("model").str.extract(r"_(\d+)$").cast(pl.Int64)
    lost = (number % 50 == 49) & (pl.col("batch") >= 32)
    kept = {*full.columns[:13], "started", "took_s", "host", "machine", "cpu", "cores", "basis"}
    measured = [name for name in full.columns if name not in kept | {"xsp_version", "status"}]
    return (
        full.with_columns(lost=lost)
        .with_columns(pl.when(~pl.col("lost")).then(pl.col(name)) for name in measured)
        .with_columns(
            status=pl.when("lost").then(pl.lit("out-of-memory")).otherwise(pl.col("status")),
            reason=pl.when("lost").then(pl.lit("it ran out of memory")),
        )
        .drop("lost")
    )
