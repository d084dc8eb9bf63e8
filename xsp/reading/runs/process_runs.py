"""The runs of one process with their warnings: saved to a folder, and loaded by another process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from xsp.errors import TraceFormatError
from xsp.level import Kind
from xsp.matching import Pass, Run
from xsp.reading.monitor import Monitoring
from xsp.trace import DAMAGE
from xsp.trace_context import Origin
from xsp.warning import TraceWarning, WarningCount

_ROWS, _READINGS, _FACTS = "rows.parquet", "readings.parquet", "runs.json"


@dataclass(frozen=True, slots=True)
class ProcessRuns:
    """The runs of one process, and what the trace says of that process.

    Attributes:
        runs: Every step that counts, warm-up steps left out.
        warnings: Warnings of the session and of the interpretation, as sentences.
        subject: Name of the model or function that was measured, for people.
        levels: For every level asked for, "measured" or why the level is left out.
        environment: The machine, and the process at the end of the measurement.
        origin: When the measurement began, and inside whose span; None if unknown.
        counts: How many rows were lost, found no parent, or are ambiguous.
        monitoring: Readings of energy and utilization; None where none were taken.
    """

    runs: tuple[Run, ...]
    warnings: tuple[TraceWarning, ...]
    subject: str
    levels: Mapping[str, str]
    environment: Mapping[str, Any] = field(default_factory=dict)
    origin: Origin | None = None
    counts: tuple[WarningCount, ...] = ()
    monitoring: Monitoring | None = None

    @property
    def has_spans(self) -> bool:
        """Whether a run has spans, of which a trace can be made."""
        return any(run.rows is not None for run in self.runs)

    def save(self, directory: str | Path) -> None:
        """Write the runs into a directory, which is made if it does not exist."""
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        # One table for all runs: thousands of small files would be slow to write and read.
        # The bare runs have no rows, and so no part in the table.
        frames = [
            run.rows.with_columns(run=pl.lit(at, dtype=pl.Int64))
            for at, run in enumerate(self.runs)
            if run.rows is not None
        ]
        if frames:
            # Passes may differ in the fields of `attributes`: missing columns become null.
            pl.concat(frames, how="diagonal_relaxed").write_parquet(folder / _ROWS)
        facts: dict[str, Any] = {
            "runs": [_run_facts(run) for run in self.runs],
            "warnings": [asdict(warning) for warning in self.warnings],
            "counts": [asdict(count) for count in self.counts],
            "subject": self.subject,
            "levels": dict(self.levels),
            "environment": dict(self.environment),
            "origin": asdict(self.origin) if self.origin else None,
        }
        if (told := self.monitoring) is not None:
            told.readings.write_parquet(folder / _READINGS)
            facts["monitoring"] = {
                "lasts_ns": told.lasts_ns, "steps": told.steps, "begins_ns": told.begins_ns,
            }  # fmt: skip
            facts["warnings"] += [asdict(warning) for warning in told.warnings]
        (folder / _FACTS).write_text(json.dumps(facts), encoding="utf-8")

    @classmethod
    def load(cls, directory: str | Path) -> ProcessRuns:
        """Read what `save` wrote.

        Raises:
            TraceFormatError: A file is missing or damaged.
        """
        folder = Path(directory)
        try:
            facts = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
            frames = _frames(folder / _ROWS)
            return cls(
                tuple(_run(fact, frames.get(at)) for at, fact in enumerate(facts["runs"])),
                tuple(TraceWarning(**warning) for warning in facts["warnings"]),
                facts["subject"],
                facts["levels"],
                facts["environment"],
                Origin(**facts["origin"]) if facts["origin"] else None,
                tuple(WarningCount(**count) for count in facts["counts"]),
                Monitoring(pl.read_parquet(folder / _READINGS), **facts["monitoring"])
                if "monitoring" in facts
                else None,
            )
        except (*DAMAGE, KeyError, TypeError, AttributeError) as error:
            raise TraceFormatError(f"{folder} holds no complete runs: {error}") from error


def _run_facts(run: Run) -> dict[str, Any]:
    return {
        "kinds": sorted(kind.value for kind in run.pass_.kinds),
        "detail": run.pass_.detail,
        "sampled": run.pass_.sampled,
        "latency_ns": run.latency_ns,
        "round": run.round,
        "began_ns": run.began_ns,
        "host_ns": run.host_ns,
        "page_faults": run.page_faults,
    }


def _run(fact: Mapping[str, Any], rows: pl.DataFrame | None) -> Run:
    kinds = frozenset(Kind(kind) for kind in fact["kinds"])
    pass_ = Pass(kinds, fact["detail"], fact["sampled"])
    numbers = ("latency_ns", "round", "began_ns", "host_ns", "page_faults")
    return Run(pass_, rows=rows, **{name: fact[name] for name in numbers})


def _frames(path: Path) -> dict[int, pl.DataFrame]:
    """Return the rows of each run by the run's number; bare runs have none."""
    if not path.exists():
        return {}
    rows = pl.read_parquet(path)
    lengths, numbers = rows["run"].rle().struct.unnest()  # the rows of a run lie side by side
    ends = lengths.cum_sum().to_list()
    rows = rows.drop("run")
    return {
        number: rows[end - length : end]
        for number, length, end in zip(numbers, lengths, ends, strict=True)
    }
