"""A channel in memory, and what a rank measured, for ranks that are objects of one test."""

from __future__ import annotations

import polars as pl
from samples import Node, layer, op, pipeline
from samples import trace as made

from xsp.reading.rank import COLLECTIVE_SCHEMA
from xsp.trace import Trace
from xsp.warning import NOTE


class Board:
    """Keeps what ranks leave for each other."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.gone = False

    def put(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def get(self, key: str) -> bytes | None:
        return self.values.get(key)


def rank_trace() -> Trace:
    """Return the trace of a rank: a training step in which it reduces twice."""
    reduces = [
        Node("op", "gloo:all_reduce", 40_000, [], {"collective": "allreduce"}) for _ in range(2)
    ]
    step = pipeline("step", layer("fc", "Linear", op("aten::addmm", own_ns=9_000)), *reduces)
    warnings = [{"code": "observed", "message": "others watch"}, {"code": NOTE, "message": "so"}]
    return made(pipeline("block", pipeline("load"), step), warnings=warnings)


def rank_collectives() -> pl.DataFrame:
    rows = [
        (0, step, "step", "gloo:all_reduce", number, start, start + 40_000)
        for step in range(3)
        for number, start in enumerate((1_000_000 * step, 1_000_000 * step + 50_000))
    ]
    return pl.DataFrame(rows, schema=COLLECTIVE_SCHEMA, orient="row")
