"""Folds the tree of a trace into the rows that text and HTML draw."""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.inexact import reasons_of, united
from xsp.matching import Ints, generations
from xsp.text import beyond, counted, printable
from xsp.trace import folding
from xsp.trace.attribute import EARLY_ENDS, attribute_column, inexact_column
from xsp.trace.coverage import (
    WORKER_WAITS,
    at_once_inside,
    on_another_thread,
    on_one_clock,
    self_functions,
    worker_functions,
)
from xsp.trace.off_cpu import OFF, OffCpu
from xsp.trace.row import (
    INTERVAL,
    NOUNS,
    NUMBERS,
    SUMS,
    Floats,
    Node,
    Outline,
    Row,
    Tree,
    function_rows,
    known,
    known_sum,
    left_over,
    margin_of,
    part_of_clock,
    reach_of_rest,
)

# Showing operators is worth so much of showing layers, when a row is chosen to be opened.
_OPERATOR_WEIGHT = 0.25
# Operators that call one another share a row while each takes so much of its caller's time.
_CHAIN_SHARE = 0.8
# A row stays closed where fewer rows than this are left for its children.
_FEWEST = 10
# Hidden children are summed by class or name from so many times the smallest latency on.
_MUCH = 5
_MODULES = ("region", "layer")
# Operators have rows of their own in what takes so much of the time, self time from there on.
_TELLING = 0.05
# Spans that take so much of the time are shown before all others.
_LARGE = 0.01
# A tree is full where no more than this part of the rows asked for is left.
_UNUSED = 0.1
_TIE = 1e-9  # of the time: equal weights differ by up to so much; the first is the heavier
# Small siblings of one name are summed until all other spans have rows: their weights are so
# much less than those of others, which differ by a factor of 1e15 at most.
_LAST = 1e-15
# Time that says nothing of the steps: what is small is judged against the rest.
_ASIDE = r"^(first |recompiled |import |unwatched)"
_OWN, _OUTSIDE, _WAIT = "self time", "outside models", "waiting for devices"
# Several threads were at work where the sum of latencies is so many times the time they took.
_AT_ONCE = 1.05
_SIDE_BY_SIDE = "at once"
_ITERATION = "training iteration"
_LONG = 24  # letters of a numbered name of which not both the first and the last are shown


def outline(
    spans: pl.DataFrame, *, rows: int | None = 60, smallest: float | None = None
) -> Outline:
    """Return the outline of a trace's tree.

    The largest spans are opened first, until there are `rows` rows. A span is as large as its
    share of the model's latency or its share of the devices' time, whichever is larger: of a
    program that mostly waits, all kernels together may take a thousandth of the latency.
    Neighboring siblings with equal subtrees share a row, also where they recur in a pattern, and
    so do operators of a chain in which each operator only calls the next.

    Args:
        spans: Frame with the columns of `trace.spans`.
        rows: About how many rows at most; None for all.
        smallest: Share, less that of first calls, below which a span has no row of its own;
            None: 0.01, or less as long as there are rows for smaller spans.
    """
    if not spans.height:
        return Outline((), 0, 0)
    room = rows
    if room is None or spans.height <= room:
        # Self times are rows as well, and functions that each had a tenth of it, or more.
        room = spans.height * 12
    builder = _Builder(spans)
    if smallest is None and (rows is None or spans["latency_ns"][0] is None):
        smallest = 0.0
    if smallest is None:
        tree = builder.fill(room)
    else:
        builder.judge(smallest * builder.steady_ns)
        tree = builder.grow(room)
    more = tree.crowded or (smallest is None and tree.hidden)
    return Outline(tuple(builder.flatten(tree.root)), spans.height, builder.calls, more)


@dataclass(frozen=True, slots=True)
class _Around:
    """Facts of an enclosing row for the rows inside it: concurrency, steps, counts."""

    row: Row | None
    said: str
    steps: int
    count: int
    kinds: str


class _Builder:
    """The groups of a trace (`folding.Folding`), of which rows are made.

    Arrays have an entry for each group; a group number is an index into the arrays.

    Attributes:
        steady_ns: Latency of the model without first calls, by which spans are large or small.
    """

    steady_ns: float
    # Of the tree that grows: see `Tree`.
    _hidden: bool
    _crowded: bool

    def __init__(self, spans: pl.DataFrame) -> None:
        parent = folding.parent_rows(spans)
        levels = list(generations(parent))
        named = folding.numberless(spans)
        shapes = folding.shapes(named, parent, levels)
        own = folding.neighbors(shapes, folding.steps(named), parent)
        folded = folding.fold(own, parent, levels)
        heads = folding.heads(spans, folded.first)
        alone = attribute_column(spans, "process", pl.Int64).is_not_null().to_numpy()
        self._inside = at_once_inside(spans, folded.of, parent)
        self._away = (on_another_thread(spans, parent) & ~alone)[folded.first]
        self._beside = self._away | ~heads["on_host"].to_numpy()
        sums = folding.sums(
            spans.hstack(folding.occurrences(spans)),
            folded.of,
            pl.last("name").alias("last_name"),
        )
        # Self times are drawn as latencies are, of which several may have run at once.
        at_once = pl.col("latency_ns") / pl.col("busy_ns")
        sums = sums.with_columns(self_ns=pl.col("self_ns") * at_once.fill_nan(1.0).fill_null(1.0))
        sums = on_one_clock(spans, sums, folded.of, parent)
        self._kinds = heads["kind"]
        self._firsts, self._spans = folded.first, folded.count
        of_program = attribute_column(spans, "program_part", pl.Boolean).fill_null(value=False)
        self._of_program = of_program.to_numpy()[folded.first]
        self._counts = sums["calls"].to_numpy()
        self._inexact = united(inexact_column(spans), folded.of, len(folded.count))
        self._numbers = {
            name: sums[name].cast(pl.Float64).fill_null(float("nan")).to_numpy() for name in NUMBERS
        }
        self._self_functions = self_functions(spans, folded.of)
        self._worker_functions = worker_functions(spans, folded.of)
        self._off_cpu = OffCpu(spans, folded.of, parent)
        self._slowest = self._slowest_group(folded.parent)
        self._order = np.argsort(folded.parent, kind="stable")[1:]
        self._starts = np.searchsorted(
            folded.parent[self._order], np.arange(len(folded.parent) + 1)
        )
        latency = self._numbers["latency_ns"][0]
        if np.isfinite(latency):
            self._model_ns = float(latency)
        else:
            self._model_ns = float(spans["end_ns"][0] - spans["start_ns"][0])
        top = self._totals(np.zeros(1, dtype=np.int64))
        self._error = (margin_of(top) or 0.0) / self._model_ns if self._model_ns else 0.0
        self._wait_ns = attribute_column(spans, "device_wait_ns", pl.Float64)[0] or 0.0
        self._block = bool(attribute_column(spans, "whole_block", pl.Boolean)[0])
        group = attribute_column(spans, "is_group", pl.Boolean).fill_null(value=False)
        self._is_step = (group | (spans["name"] == _ITERATION)).to_numpy()[folded.first]
        is_aside = (pl.col("kind") == "region") & pl.col("name").str.contains(_ASIDE)
        self._aside = aside = heads.select(is_aside.fill_null(value=False)).to_series().to_numpy()
        outermost = aside & ~aside[np.maximum(folded.parent, 0)]
        self.steady_ns = self._left(self._model_ns, "latency_ns", outermost)
        self._weights = self._weigh(outermost)
        self._table = heads.with_columns(
            sums["last_name"], sums["calls"], weight=pl.Series(self._weights)
        )
        self._ranks = self._weights * np.where(self._recurring(folded.parent), _LAST, 1.0)
        self._parent, self._levels = folded.parent, list(generations(folded.parent))

    def _left(self, whole_ns: float, name: str, aside: NDArray[np.bool_]) -> float:
        """Return what groups that are aside leave of a time; all of it where that is nothing."""
        left_ns = whole_ns - known_sum(np.append(self._numbers[name][aside], 0.0))
        return left_ns if left_ns > 0 else whole_ns

    def _weigh(self, aside: NDArray[np.bool_]) -> Floats:
        """Return each group's latency, or its share of the devices' time where that is larger.

        Times of devices are scaled as if these had worked for as long as the model took.
        """
        device_ns = self._numbers["device_ns"]
        whole_ns = self._left(float(np.nan_to_num(device_ns[0])), "device_ns", aside)
        scale = self.steady_ns / whole_ns if whole_ns > 0 else 1.0
        weights = np.fmax(self._numbers["latency_ns"], device_ns * scale)
        ties = np.arange(len(weights), 0, -1) / len(weights)
        return np.nan_to_num(weights) + _TIE * self.steady_ns * ties

    def _recurring(self, parent: Ints) -> NDArray[np.bool_]:
        """Return whether each group is one of several small siblings of one name."""
        alone = np.bincount(parent[1:], minlength=len(parent)) == 0
        limits_ns = np.where(alone, _TELLING, _LARGE) * self.steady_ns
        small = pl.Series(self._weights < limits_ns) & ~self._kinds.is_in(_MODULES)
        siblings = self._table.select("kind", "label", parent=parent, small=small)
        often = pl.sum("small").over("parent", "kind", "label") >= _MUCH
        return siblings.select(pl.col("small") & often).to_series().to_numpy()

    def judge(self, least_ns: float) -> None:
        """Set the weight below which spans and self times have no row."""
        self._least_ns = least_ns
        # Where there is room for small spans, there is for operators of small layers.
        self._telling_ns = min(_TELLING / _LARGE * least_ns, _TELLING * self.steady_ns)
        self._own_least_ns = (_TELLING if least_ns else 0.01) * self.steady_ns
        self._part_least_ns = max(least_ns, 0.01 * self.steady_ns)

    def fill(self, rows: int) -> Tree:
        """Return a tree of up to `rows` rows, with smaller spans as long as there are rows."""
        self.judge(_LARGE * self.steady_ns)
        best = self.grow(rows)
        # A group has a row only where all those above have.
        sizes = self._ranks.copy()
        for level in self._levels[1:]:
            sizes[level] = np.minimum(sizes[level], sizes[self._parent[level]])
        sizes = np.sort(sizes)[::-1]
        # So many of the largest groups fit, and with so many no tree was too large as yet.
        fits, most = int((sizes >= self._least_ns).sum()), len(sizes)
        guess, full = max(rows, fits + 1), rows * (1 - _UNUSED)
        while best.hidden and not best.crowded and fits < most and best.size < full:
            number = min(guess, most)
            self.judge(float(sizes[number - 1]))
            tree = self.grow(rows)
            if tree.crowded:
                most = number - 1
            else:
                best, fits = tree, number
            guess = 2 * fits if most == len(sizes) else (fits + most + 1) // 2
        return best

    @property
    def calls(self) -> int:
        """Number of occurrences that all spans stand for."""
        return int(self._counts.sum())

    def grow(self, rows: int) -> Tree:
        """Return a tree of up to `rows` rows, the largest spans opened first."""
        root = self._node(0)
        left, ticket = rows - 1, count()
        self._hidden = self._crowded = False
        # A tree of few rows needs shorter lists.
        fewest = max(3, min(_FEWEST, rows // 4))
        opens = self._order.size or self._off_cpu.rows(root, _LARGE * self.steady_ns)
        heap = [(0.0, next(ticket), root)] if opens else []
        while heap and left > 0:
            node = heapq.heappop(heap)[2]
            children = self._children(node, max(left, fewest))
            taken = sum(1 + len(child.children) for child in children)
            if taken > left:
                for child in children:  # their functions, first of all
                    child.children = []
                taken = len(children)
            if taken > left:
                self._crowded = True
                continue
            node.children = children
            left -= taken
            for child in children:
                score = self._score(child)
                if score > 0:
                    heapq.heappush(heap, (-score, next(ticket), child))
        return Tree(root, self._hidden, self._crowded or bool(heap))

    def flatten(self, root: Node) -> Iterator[Row]:
        """Yield rows from the root down, without recursion: call stacks can be deep."""
        # Children go onto the stack in reverse, so that the first child comes off first.
        steps = self._steps_of_program()
        top = _Around(None, "", steps, 1, "")
        stack: list[tuple[Node, int, bool, _Around]] = [(root, 0, True, top)]
        while stack:
            node, depth, last, around = stack.pop()
            at_once = self._at_once(node)
            steps = around.steps
            if node.kind not in SUMS and (self._is_step | self._aside)[node.tail]:
                steps = 1 if self._aside[node.tail] else node.count
            detail = self._detail(node, "" if at_once == around.said else at_once)
            row = self._row(node, around.row, detail, depth=depth, last=last)
            told = row.each() if row.count not in (around.count, steps) else ""
            if row.kinds:
                told = row.kinds if around.kinds == "" and (row.share or 0) >= _TELLING else ""
            row = replace(
                row,
                steps=steps,
                told=told,
                slowest=self._slowest == node.groups[0] and node.kind == "layer",
            )
            yield row
            # How many ran at once is said by the outermost row alone.
            said = at_once if at_once.endswith(_SIDE_BY_SIDE) else around.said
            end = len(node.children) - 1
            # Of what runs at once inside, the sum may be more than what is around it.
            limit = row if self._inside[node.tail] < _AT_ONCE else None
            inside = _Around(limit, said, steps, row.count, row.kinds or around.kinds)
            stack.extend(
                (child, depth + 1, place == end, inside)
                for place, child in reversed(list(enumerate(node.children)))
            )

    def _steps_of_program(self) -> int:
        """Return how often the steps of a program ran, where all are of one kind; else 1."""
        groups = np.flatnonzero(self._is_step)
        first = self._table["name"][groups].str.starts_with("first ").to_numpy()
        counts = set(self._counts[groups[~first]].tolist())
        if not self._block or len(counts) != 1:
            return 1
        return int(counts.pop()) + int(first.any())

    def _slowest_group(self, parent: Ints) -> int:
        """Return the group of the slowest layer that has no layers inside; -1 of a single one.

        Args:
            parent: Number of each group's parent group.
        """
        layer = (self._kinds == "layer").to_numpy()
        leaf = layer.copy()
        leaf[parent[layer & (parent >= 0)]] = False
        times = np.where(leaf, np.nan_to_num(self._numbers["latency_ns"]), -1.0)
        order = np.argsort(times, kind="stable")[-2:]
        if leaf.sum() < len(order) or times[order[0]] == times[order[-1]]:
            return -1
        return int(order[-1])

    def _below(self, group: int) -> Ints:
        return self._order[self._starts[group] : self._starts[group + 1]]

    def _score(self, node: Node) -> float:
        below = self._below(node.tail)
        if node.kind in SUMS:
            return 0.0
        weight = float(self._weights[node.groups].sum())
        if self._least_ns and self._ranks[node.groups].sum() < self._least_ns:
            self._hidden |= bool(below.size)
            return 0.0
        if not below.size:  # of data loading, say, the functions may be known
            return weight if node.kind == "region" else 0.0
        modules = (self._kinds[below].is_in(_MODULES)).any()
        told = modules or node.kind not in _MODULES or not self._least_ns
        if not told and weight < self._telling_ns:
            self._hidden = True
            return 0.0
        return max(weight, 1e-9) * (1.0 if modules else _OPERATOR_WEIGHT)

    def _children(self, node: Node, most: int) -> list[Node]:
        """Return the children of a node: large groups, then the rest, then its self time.

        All time of a leaf is its own, so that the functions which it went to are its children.
        """
        below = self._below(node.tail)
        off = self._off_cpu.rows(node, self.steady_ns * (_TELLING if node.groups[0] else _LARGE))
        if not below.size:
            workers = self._functions(node, workers=True)
            if workers and WORKER_WAITS not in workers[0].names[0]:
                return workers + off  # functions of the program's own would only say that it waits
            return workers + [f for own in self._own(node) for f in self._functions(own)] + off
        weights = self._weights[below]
        shown = self._ranks[below] >= self._least_ns
        # A rest of a single group would be no shorter than a row of its own.
        if (~shown).sum() == 1 and shown.any():
            shown[:] = True
        self._hidden |= not shown.all()
        if shown.sum() > most:
            self._crowded = True
            shown[np.argsort(-weights, kind="stable")[most - 2 :]] = False
        children = [self._node(group) for group in below[shown].tolist()]
        summed = self._summed(below[~shown], most - len(children) - 1)
        tiny = min(self._least_ns, _LARGE * self.steady_ns) / 2
        children += [node for node in summed if not self._weights[node.groups].sum() < tiny]
        self._named_apart(children)
        children += self._own(node) + off + self._functions(node, workers=True)
        # Children that are only sums would say no more than the closed row; but of a stage of a
        # pipeline (tokenizing, say) the function that ran is the whole story.
        sums = all(child.kind in ("rest", "own") for child in children)
        told = node.kind == "region" and any(
            child.kind == "own" and (child.children or self._detail(child)) for child in children
        )
        return [] if sums and not told else children

    def _named_apart(self, nodes: list[Node]) -> None:
        """Name layers of one name by the paths of their modules, where these differ."""
        names: dict[tuple[str, ...], list[Node]] = {}
        for node in nodes:
            if node.kind == "layer":
                names.setdefault(node.names, []).append(node)
        for alike in names.values():
            paths = [self._table["module_path"][int(node.groups[0])] for node in alike]
            if len(set(paths)) > 1 and all(paths):
                for node, path in zip(alike, paths, strict=True):
                    node.names = (printable(path),)

    def _node(self, group: int) -> Node:
        tail, names = group, [self._name(group)]
        while self._kinds[tail] == "op" and (called := self._next_called(tail)) is not None:
            tail = called
            names.append(self._name(tail))
        return self._sum(np.array([group]), self._kinds[group], tuple(names), tail)

    def _sum(self, groups: Ints, kind: str, names: tuple[str, ...], tail: int) -> Node:
        calls = int(self._counts[groups].sum())
        inexact = int(np.bitwise_or.reduce(self._inexact[groups]))
        return Node(kind, names, groups, tail, calls, self._totals(groups), inexact=inexact)

    def _next_called(self, group: int) -> int | None:
        """Return the operator that does nearly all work of a group, None where several do."""
        below = self._below(group)
        if not below.size:
            return None
        latencies = np.nan_to_num(self._numbers["latency_ns"][below])
        largest = int(latencies.argmax())
        called = int(below[largest])
        # What else it called may keep a device busy, and the host only for a moment.
        others = np.delete(self._weights[below], largest).sum()
        little_ns = max(self._least_ns, _LARGE * self.steady_ns) if self._least_ns else 0.0
        alone = len(below) == 1 or others < little_ns
        once = self._counts[called] == self._counts[group]
        whole = np.nan_to_num(self._numbers["latency_ns"][group])
        enough = latencies[largest] >= _CHAIN_SHARE * whole
        return called if alone and once and enough and self._kinds[called] == "op" else None

    def _summed(self, groups: Ints, most: int) -> list[Node]:
        """Return hidden children summed: large sums by class or name, then the rest."""
        if not groups.size:
            return []
        if self._weights[groups].sum() < _MUCH * self._least_ns:
            return [self._rest(groups)]
        labeled = self._table[groups].with_columns(group=groups)
        found = (
            labeled.group_by("kind", "label", maintain_order=True)
            .agg(pl.sum("weight", "calls"), pl.col("group"))
            .filter((pl.col("weight") >= self._least_ns) & (pl.col("calls") > 1))
            .sort("weight", descending=True, maintain_order=True)
            .head(max(most - 1, 0))
        )
        nodes = [
            self._sum(np.array(members), "some", (f"… {printable(label)}",), members[0])
            for label, members in found.select("label", "group").iter_rows()
        ]
        left = np.setdiff1d(groups, found["group"].explode().to_numpy())
        return [*nodes, self._rest(left)] if left.size else nodes

    def _rest(self, groups: Ints) -> Node:
        kinds = self._table[groups].group_by("kind", maintain_order=True).agg(pl.len())
        # Of equal ones only the first may have had a row.
        alike = self._ranks[groups].max() >= self._least_ns - 2 * _TIE * self.steady_ns
        word = "more" if alike else "small"
        name = ", ".join(
            counted(number, NOUNS.get(kind, kind)).replace(" ", f" {word} ", 1)
            for kind, number in kinds.sort("len", descending=True, maintain_order=True).rows()
        )
        return self._sum(groups, "rest", (name,), int(groups[0]))

    def _own(self, node: Node) -> list[Node]:
        """Return rows for the self time of a span or chain, where it is long enough.

        The root's self time has a row apart for waiting for devices at the root's end.
        """
        below, own = self._below(node.tail), node.totals["self_ns"]
        below = below[self._table["on_host"].to_numpy()[below]]
        if node.tail != node.groups[0]:
            own = node.totals["latency_ns"] - self._totals(below)["latency_ns"]
        top = int(node.groups[0]) == 0
        # Both come with errors: waiting cannot take more than all of the self time.
        wait = min(self._wait_ns, own) if top else 0.0
        name = _OUTSIDE if top and self._block else _OWN
        parts = {name: own - wait, _WAIT: wait}
        ends = (np.append(node.totals[name], self._numbers[name][below]) for name in INTERVAL)
        reach = reach_of_rest(*ends, error=self._error)
        unknown = reach / own if reach >= own > 0 else 0.0
        rows = {
            name: Node("own", (name,), node.groups, node.tail, node.count, totals)
            for name, part in parts.items()
            if part > 0 and part >= (self._own_least_ns if name != _WAIT else self._part_least_ns)
            for totals in [left_over(part, unknown * part, node.totals)]
        }
        if name in rows and node.kind == "region":
            found = self._functions(rows[name])
            # A single one stands behind its row, where "outside models" leaves it no room.
            rows[name].children = found if name == _OUTSIDE or len(found) > 1 else []
        return list(rows.values())

    def _functions(self, node: Node, *, workers: bool = False) -> list[Node]:
        """Return rows for the functions that much of a row's time went to, here or in workers."""
        found = self._worker_functions if workers else self._self_functions
        return function_rows(node, found, self._part_least_ns)

    def _totals(self, groups: Ints) -> dict[str, float]:
        values = {name: numbers[groups] for name, numbers in self._numbers.items()}
        totals = {name: known_sum(numbers) for name, numbers in values.items()}
        # An interval of a sum is unknown where one member's interval is.
        if np.any(np.isfinite(values["latency_ns"]) & np.isnan(values["latency_low_ns"])):
            totals["latency_low_ns"] = float("nan")
        return totals

    def _name(self, group: int) -> str:
        first, last = (printable(self._table[name][group]) for name in ("name", "last_name"))
        bare = re.sub(r"\d+", "#", first)
        if len(first) > _LONG and bare == re.sub(r"\d+", "#", last) and first != last:
            return bare
        return (first or "(no name)") if first == last else f"{first} … {last}"

    def _share_margin(self, node: Node) -> float | None:
        """Return half the interval of a share, less the relative error of the model's latency.

        That error is for the most part of the machine's speed, and common to all latencies.
        """
        latency, reach = node.totals["latency_ns"], margin_of(node.totals)
        if reach is None or not self._model_ns:
            return None
        if node.totals["busy_ns"] > self._model_ns:
            return reach / self._model_ns + self._error
        return beyond(reach, self._error * latency) * part_of_clock(node.totals) / self._model_ns

    def _row(self, node: Node, around: Row | None, detail: str, *, depth: int, last: bool) -> Row:
        totals = {name: known(value) for name, value in node.totals.items()}
        latency, busy = totals["latency_ns"], totals["busy_ns"]
        at_once = (latency or 0.0) >= _AT_ONCE * (busy or math.inf)
        beside = at_once or self._beside[node.groups].any()
        limits = [None if beside or around is None else around.most_ns]
        limits += [totals["latency_high_ns"] if margin_of(node.totals) is not None else None]
        most_ns = min((each for each in limits if each is not None), default=None)
        one = node.kind not in SUMS and int(self._spans[node.groups].sum()) == 1
        head = self._table.row(int(node.groups[0]), named=True) if one else {}
        return Row(
            depth=depth,
            last=last,
            parent=bool(node.children),
            kind=node.kind,
            name=folding.chain_name(node.names),
            detail=detail,
            count=node.count,
            latency_ns=latency,
            margin_ns=margin_of(node.totals),
            overhead_ns=totals["overhead_ns"],
            share=busy / self._model_ns if busy is not None and self._model_ns else None,
            device_ns=totals["device_ns"],
            inexact=reasons_of(node.inexact) if latency is not None else (),
            spans=int(self._spans[node.groups].sum()),
            share_margin=self._share_margin(node),
            most_ns=most_ns,
            most_share=min((most_ns or math.inf) / (self._model_ns or 1.0), 1.0),
            first=None if node.kind in SUMS else int(self._firsts[node.groups[0]]),
            of_program=bool(self._of_program[node.groups].all()),
            inferred=bool(self._table["calls_inferred"][node.groups].any()),
            kinds=head.get("two_kinds") or "",
        )

    def _detail(self, node: Node, at_once: str = "") -> str:
        if node.kind == "own" and node.names[0] in (_OWN, _OUTSIDE) and not node.children:
            functions = self._self_functions.get(int(node.groups[0]), ())
            return printable("".join(f"{100 * part:.0f} % in {f}" for f, part, _ in functions[:1]))
        if node.kind == "own" and node.names[0] == OFF:
            return self._off_cpu.why(node.groups)
        if node.kind in ("rest", "own"):
            return ""
        head = self._table.row(int(node.groups[0]), named=True)
        words = [f"in {head['process_name']}" if head["process_name"] else at_once, head["remark"]]
        if node.kind == "layer":
            words.insert(0, head["label"] if head["label"] != head["name"] else "")
            words.insert(1, "backward" if head["phase"] == "backward" else "")
        if head["error"] is not None and node.kind != "some":
            often = f"{head['error_calls']:,} " if head["error_calls"] is not None else ""
            words.append(EARLY_ENDS.get(head["error"], f"{often}raised {head['error']}"))
        return printable(" ".join(filter(None, words)))

    def _at_once(self, node: Node) -> str:
        """Say how many of the spans, or of those inside, ran at once on average.

        Or that the span ran beside its parent.
        """
        latency, busy = node.totals["latency_ns"], node.totals["busy_ns"]
        if latency >= _AT_ONCE * busy > 0:
            if node.count == 1 and node.kind not in SUMS:
                return "takes turns"  # a generator's region, say, and what its consumer does
            return f"{latency / busy:.1f} {_SIDE_BY_SIDE}".replace(".0 ", " ")
        if (inside := self._inside[node.tail]) >= _AT_ONCE and node.kind not in SUMS:
            return f"{inside:.1f} at once inside".replace(".0 ", " ")
        return "on another thread" if self._away[node.groups[0]] else ""
