"""Folded stacks: spans in, a line for each stack of names with its own time out.

`predict;conv1 Conv2d;aten::conv2d 41000` is the format of Brendan Gregg's flamegraph.pl, which
inferno, speedscope and many others read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any

from xsp.export.flame.stack import Stacks, title
from xsp.export.reduction import Reduced
from xsp.text import printable

_ROOT = -1


def write(reduced: Reduced, metadata: Mapping[str, Any], file: IO[bytes]) -> None:
    """Write a trace as folded stacks, weighted by own time in whole ns.

    Lines of the root's thread begin with the root, and sum to its latency. Those of another
    thread or stream begin with its name, for they run beside. A `;` in a name becomes a `:`, as
    stackcollapse-perf.pl has it, and a character that cannot be printed its escape.

    Args:
        reduced: The spans, cut to a budget or whole.
        metadata: The trace's metadata.
        file: Written to line by line.

    Raises:
        OSError: The file could not be written.
    """
    stacks = Stacks.of(reduced, metadata)
    names = [_escaped(name) for name in stacks.names]
    folds = _Folds()
    inside = _inside(stacks)
    nodes = [_ROOT] * len(names)
    main = stacks.tracks[stacks.of_row[0]]
    for track, rows in stacks.by_track():
        first = _ROOT if track == main else folds.node(_ROOT, _escaped(title(track, metadata)))
        for row in rows:
            above = stacks.above[row]
            node = nodes[above] if above >= 0 else first
            for below in stacks.elsewhere(row) if above < 0 else ():
                node = folds.node(node, names[below])
            nodes[row] = folds.node(node, names[row])
            folds.weights[nodes[row]] += stacks.ends[row] - stacks.starts[row] - inside[row]
    folds.write(file)


def _escaped(name: str) -> str:
    r"""Return a name without what separates names and lines.

    >>> _escaped("a;b\n"), _escaped("a\u2028b")
    ('a:b\\n', 'a\\u2028b')
    """
    return printable(name.replace(";", ":"))


def _inside(stacks: Stacks) -> list[int]:
    """Return how long the spans on top of each span are, in ns."""
    inside = [0] * len(stacks.names)
    for row, above in enumerate(stacks.above):
        if above >= 0:
            inside[above] += stacks.ends[row] - stacks.starts[row]
    return inside


class _Folds:
    """Stacks that begin alike share their beginning: a node is a name on top of another node."""

    def __init__(self) -> None:
        self.weights: list[int] = []
        self._nodes: dict[tuple[int, str], int] = {}

    def node(self, below: int, name: str) -> int:
        """Return the node of a name on top of a node."""
        number = self._nodes.setdefault((below, name), len(self.weights))
        if number == len(self.weights):
            self.weights.append(0)
        return number

    def write(self, file: IO[bytes]) -> None:
        """Write a line for each stack that has time of its own."""
        keys = list(self._nodes)
        for (below, name), weight in zip(keys, self.weights, strict=True):
            if weight <= 0:
                continue
            stack = [name]
            while below != _ROOT:
                below, name = keys[below]  # noqa: PLW2901
                stack.append(name)
            line = f"{';'.join(reversed(stack))} {weight}\n"
            file.write(line.encode("utf-8", "replace"))
