"""The parcel: a trace with what was asked for when it was to be exported, made into pictures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import polars as pl

from xsp.export.picture import Picture, run_pictures
from xsp.export.reduction import reduce


class Source(Protocol):
    """What is exported: a trace, as far as this package looks at it."""

    @property
    def spans(self) -> pl.DataFrame:
        """One row per span."""
        ...

    @property
    def typical_runs(self) -> pl.DataFrame:
        """Typical runs, span by span."""
        ...

    @property
    def metadata(self) -> Mapping[str, Any]:
        """How the trace came to be."""
        ...

    def save(self, path: Path) -> Path:
        """Write the trace to a file."""
        ...


@dataclass(frozen=True, slots=True)
class Parcel:
    """What is handed over, the same each time it is made into pictures.

    Attributes:
        trace: What is exported.
        most: Most spans of each picture; None for no limit.
        typical_runs: Whether typical runs go with it.
        parent: W3C `traceparent` to hang the root under; None for the trace's own.
    """

    trace: Source
    most: int | None = None
    typical_runs: bool = False
    parent: str | None = None

    def pictures(self) -> list[Picture]:
        """Return the picture of the trace, then those of its typical runs."""
        trace = self.trace
        beside = (
            run_pictures(trace.typical_runs, trace.metadata, self.most) if self.typical_runs else []
        )
        linked = tuple(linked for _, linked in beside)
        reduced = reduce(trace.spans, self.most)
        whole = Picture(reduced, trace.metadata, parent=self.parent, linked=linked)
        return [whole, *(picture for picture, _ in beside)]
