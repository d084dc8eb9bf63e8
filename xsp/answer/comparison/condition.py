"""Checks a comparison against conditions, written as text, on which a pull request fails."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, cast

import polars as pl

from xsp.answer.analyses import text_of
from xsp.answer.comparison.comparison import Comparison
from xsp.answer.comparison.device import title
from xsp.answer.comparison.text import below, percent, signed, unescaped
from xsp.answer.comparison.whole import DEVICE, ENERGY, LATENCY, MEMORY, THROUGHPUT
from xsp.errors import AnalysisError
from xsp.text import suggest

Sort = Literal["layer", "kernel", "operator"]

GRAMMAR = """\
  CONDITION  QUANTITY > AMOUNT   it grew by more than that
             QUANTITY < -AMOUNT  it fell by more than that
  QUANTITY   latency | device time | throughput | memory | energy | layer:NAME
             layer:NAME device time | kernel:NAME | operator:NAME, of devices
  AMOUNT     5% of any quantity; of a time also 300us, 2ms or 1s;
             of memory 64KiB, 10MiB or 1GiB; of throughput 100/s; of energy 5J
NAME is a layer's path, with or without what lies around it: fc, layer1.0.conv1;
or the name of a kernel, short or full, or of an operator: aten::mm."""

_UNITS = {
    "ns": {"ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9},
    "bytes": {"B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30},
    "per_s": {"/s": 1.0},
    "_j": {"mJ": 1e-3, "J": 1.0, "kJ": 1e3},
}
_QUANTITIES = {
    "latency": LATENCY,
    "device time": DEVICE,
    "throughput": THROUGHPUT,
    "memory": MEMORY,
    "energy": ENERGY,
}
_NAMED = re.compile(
    r"(?P<sort>layer|kernel|operator):\s*(?P<name>.+?)(?P<device>\s+device( time)?)?"
)
_ARTICLES: dict[str | None, str] = {
    "layer": "a layer",
    "kernel": "a kernel",
    "operator": "an operator with device work",
}
_MOST_NAMES = 5_000  # that a suggestion is looked for among
_PATTERN = re.compile(
    r"\s*(?P<quantity>(layer|kernel|operator):.+?|[a-z ]+?)\s*(?P<sign>[<>])"
    r"\s*(?P<number>[-+]?\d+(\.\d*)?|[-+]?\.\d+)\s*(?P<unit>\S+)\s*"
)


@dataclass(frozen=True, slots=True)
class Condition:
    """A difference that is too large.

    Attributes:
        text: The condition as it was written.
        quantity: Column of the whole's quantity; of a layer `latency_ns` or `device_ns`, of a
            kernel and an operator `device_ns`.
        sort: What is named: a layer, a kernel or an operator; None: the whole.
        name: Its name; None: the whole.
        sign: Whether the quantity must not grow (`>`) or fall (`<`).
        amount: By how much: a fraction where `relative`, else ns, bytes or samples per second.
        relative: Whether it is a fraction of the first trace's.
    """

    text: str
    quantity: str
    sort: Sort | None
    name: str | None
    sign: Literal["<", ">"]
    amount: float
    relative: bool

    def outcomes(self, comparison: Comparison) -> list[Outcome]:
        """Return whether the condition holds, for each trace that is compared with the first.

        Raises:
            AnalysisError: No trace has a layer of that name.
        """
        rows = list(self._rows(comparison))
        if self.name is not None and not rows and (names := self._names(comparison)):
            asked = self.name.replace(".", "/") if self.sort == "layer" else self.name
            near = suggest(asked, list(dict.fromkeys(names))[:_MOST_NAMES])
            raise AnalysisError(f"no trace has {_ARTICLES[self.sort]} {self.name!r}{near}")
        missing = {str(row["trace"]) for row in rows}
        unknown = [name for name in comparison.names[1:] if name not in missing]
        found = [self.outcome(row) for row in rows]
        return [*found, *(self._without(name) for name in unknown)]

    def _names(self, comparison: Comparison) -> list[str]:
        """List what there is of the sort that is asked for; nothing where it cannot be known."""
        if self.sort == "layer":
            if len(comparison.across) == len(comparison.names) - 1:
                return []  # spans of two frameworks are not matched
            layers = comparison.table.filter(pl.col("kind") == "layer")
            paths = pl.concat([layers["path_a"], layers["path_b"]]).drop_nulls().to_list()
            return [end for path in paths for end in _ends(unescaped(below(path)))] or ["layer"]
        rows = comparison.by_device.filter(pl.col("by") == self.sort)
        return [title(row) for row in rows.iter_rows(named=True)]

    def _rows(self, comparison: Comparison) -> Iterator[dict[str, Any]]:
        if self.name is None:
            summary = comparison.summary.filter(pl.col("quantity") == self.quantity)
            yield from summary.iter_rows(named=True)
        elif self.sort == "layer":
            of, time = ("device_", "device") if self.quantity == DEVICE else ("", "latency")
            for row in comparison.table.filter(pl.col("kind") == "layer").iter_rows(named=True):
                paths = (row["path_a"], row["path_b"])
                if any(path and _is_called(path, self.name) for path in paths):
                    yield _difference(row, f"{time}_a_ns", of)
        else:
            for row in comparison.by_device.filter(pl.col("by") == self.sort).iter_rows(named=True):
                if self.name in (row[self.sort or ""], title(row)):
                    yield _difference(row, "device_a_ns")

    def outcome(self, row: dict[str, Any]) -> Outcome:
        """Return whether the condition holds of a row.

        Args:
            row: `trace` (its name), `a`, `difference`, `difference_high`, `ratio` and `verdict`.
        """
        change = row["ratio"] - 1 if self.relative and row["ratio"] is not None else None
        change = change if self.relative else row["difference"]
        told = f"{self.text}: {row['trace']} {self._told(row)}"
        if row["verdict"] is None and row["difference"] is None:
            return self._without(row["trace"])
        if row["verdict"] is None and not row["difference"]:
            return Outcome(False, f"{told}, for no device works for it")
        if row["verdict"] is None:
            return Outcome(None, f"{told}, and is in one of the traces alone")
        if change is None or row["verdict"] == "unknown":
            return Outcome(None, f"{told}, and nobody can tell whether that is chance")
        beyond = change > self.amount if self.sign == ">" else change < self.amount
        if row["verdict"] != "not significant":
            return Outcome(bool(beyond), told)
        said = f"{told}, which is not significant" if beyond else told
        return Outcome(False, said, self._unseen(row, beyond=beyond))

    def _unseen(self, row: dict[str, Any], *, beyond: bool) -> str | None:
        """Word the smallest change that the measurements can show; None if it meets the limit.

        No difference within the interval is seen, nor one that is less than what was not seen: of
        many layers a difference must be larger, by the correction for their number.
        """
        half = row["difference_high"] - row["difference"]
        limit = abs(self.amount) * (row["a"] if self.relative else 1.0)
        if not beyond and half <= limit:
            return None
        least = max(half, abs(row["difference"]))
        share = f" ({text_of('share_pct', 100 * least / row['a'])} %)" if row["a"] else ""
        return (
            f"{self.text}: {row['trace']} cannot see less than "
            f"{text_of(self.quantity, least)}{share}: measure longer, or on a quieter machine"
        )

    def _told(self, row: dict[str, Any]) -> str:
        if self.quantity.endswith("_ns"):
            return f"{signed(row['difference'], row['difference_high'])} ({percent(row['ratio'])})"
        return percent(row["ratio"])

    def _without(self, name: str) -> Outcome:
        return Outcome(None, f"{self.text}: not known of both {name} and what it is compared with")


def _difference(row: dict[str, Any], a: str, of: str = "") -> dict[str, Any]:
    """Return what `Condition.outcome` asks of a row of a table of spans or of device work."""
    return {
        "trace": row["trace"],
        "a": row[a],
        "difference": row[f"{of}difference_ns"],
        "difference_high": row[f"{of}difference_high_ns"],
        "ratio": row[f"{of}ratio"],
        "verdict": row[f"{of}verdict"],
    }


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a condition for one trace.

    Attributes:
        holds: None where that cannot be decided.
        text: The condition, and the difference, for people.
        unseen: What passes for the measurements are too inexact: the smallest difference that they
            could have told from chance, where the condition asks for less; None: all was seen.
    """

    holds: bool | None
    text: str
    unseen: str | None = None

    @property
    def is_sure(self) -> bool:
        """Whether it was decided, by measurements that could see what the condition asks for."""
        return self.holds is not None and self.unseen is None


def parse_condition(text: str) -> Condition:
    """Return the condition that a text such as `latency > 5%` states.

    Raises:
        ValueError: It states none; the message has the grammar.
    """
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise ValueError(_wrong(text, "it is no condition"))
    named = match["quantity"]
    sort: Sort | None = None
    name: str | None = None
    if found := _NAMED.fullmatch(named):
        sort, name = cast("Sort", found["sort"]), found["name"].strip()
        quantity = LATENCY if sort == "layer" and not found["device"] else DEVICE
    elif named in _QUANTITIES:
        quantity = _QUANTITIES[named]
    else:
        known = [*_QUANTITIES, "layer:NAME", "kernel:NAME", "operator:NAME"]
        raise ValueError(_wrong(text, f"there is no quantity {named!r}{suggest(named, known)}"))
    number, unit = float(match["number"]), match["unit"]
    sign: Literal["<", ">"] = ">" if match["sign"] == ">" else "<"
    if not math.isfinite(number) or (number and (number < 0) != (sign == "<")):
        raise ValueError(_wrong(text, "'>' takes a positive amount, '<' a negative one"))
    if unit == "%":
        return Condition(text.strip(), quantity, sort, name, sign, number / 100, relative=True)
    units = next(each for end, each in _UNITS.items() if quantity.endswith(end))
    if unit not in units:
        raise ValueError(
            _wrong(text, f"{unit!r} is no unit of it; there are %, {', '.join(units)}")
        )
    return Condition(text.strip(), quantity, sort, name, sign, number * units[unit], relative=False)


def _wrong(text: str, why: str) -> str:
    return f"{text!r}: {why}. The grammar:\n{GRAMMAR}"


def _ends(path: str) -> list[str]:
    """List the names that a path may be called by, the shortest first.

    >>> _ends("net/0/fc")
    ['fc', '0/fc', 'net/0/fc']
    """
    parts = path.split("/")
    return ["/".join(parts[at:]) for at in range(len(parts) - 1, -1, -1)]


def _is_called(path: str, name: str) -> bool:
    """Return whether a path ends in a name.

    >>> _is_called("predict/net/0/fc", "0.fc"), _is_called("predict/net/0/fc", "c")
    (True, False)
    """
    plain, asked = unescaped(path), name.replace(".", "/")
    return plain in (name, asked) or plain.endswith((f"/{name}", f"/{asked}"))
