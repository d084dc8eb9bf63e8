"""Tables of a zoo: the frame of results in, one documented table out.

Every column says what it means, and bears its unit at the end of its name, as in docs/analyses.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import polars as pl


@dataclass(frozen=True, slots=True)
class ZooTable:
    """A function from the frame of results to a table.

    Attributes:
        name: Name on the command line.
        question: The question that the table answers.
        columns: What each column means, in the table's order.
        make: Makes the table of a frame of results.
        paper: The table of the paper XSP (arXiv 1908.06869) that it has the shape of, if any.
    """

    name: str
    question: str
    columns: Mapping[str, str]
    make: Callable[[pl.DataFrame], pl.DataFrame]
    paper: str = ""

    def __call__(self, results: pl.DataFrame) -> pl.DataFrame:
        """Return the table of a frame of results."""
        return self.make(results).select(*self.columns)
