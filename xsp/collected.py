"""What a measurement collected: runs, to be saved, sent on, and made into a trace."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl

from xsp import __version__
from xsp.caveat import DOUBTS, caveat, settled
from xsp.errors import MeasurementError, TraceFormatError
from xsp.level import MEASURED, Kind
from xsp.merge import Merged, merge
from xsp.origin import Origin
from xsp.plan import Settings
from xsp.run import Run, Rung
from xsp.settle import Settled, settle
from xsp.trace import FORMAT, Problem, Trace

_ROWS, _FACTS = "rows.parquet", "runs.json"

# Kinds of span that have a latency in a serialised run: what runs on the host, launches apart.
_SERIALISED = [kind.value for kind in (Kind.PIPELINE, Kind.LAYER, Kind.OP, Kind.CALL)]


@dataclass(frozen=True, slots=True)
class Collected:
    """The runs of one process.

    Attributes:
        runs: Every evaluation that counts.
        problems: What went wrong on the way.
        subject: What was measured, for people.
        levels: For every level asked for, "measured" or why it is left out.
        environment: The machine, and the process at the end of the measurement.
        origin: When the measurement began, and inside whose span; None if nobody noted it.
    """

    runs: tuple[Run, ...]
    problems: tuple[Problem, ...]
    subject: str
    levels: Mapping[str, str]
    environment: Mapping[str, Any] = field(default_factory=dict)
    origin: Origin | None = None

    def save(self, directory: str | Path) -> None:
        """Write it into a directory, which is made if it is not there."""
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        frames = [
            run.rows.with_columns(run=pl.lit(at, dtype=pl.Int64))
            for at, run in enumerate(self.runs)
            if run.rows is not None
        ]
        if frames:
            pl.concat(frames, how="diagonal_relaxed").write_parquet(folder / _ROWS)
        facts = {
            "runs": [_run_facts(run) for run in self.runs],
            "problems": [[problem.code, problem.message] for problem in self.problems],
            "subject": self.subject,
            "levels": dict(self.levels),
            "environment": dict(self.environment),
            "origin": asdict(self.origin) if self.origin else None,
        }
        (folder / _FACTS).write_text(json.dumps(facts), encoding="utf-8")

    @classmethod
    def load(cls, directory: str | Path) -> Collected:
        """Read what `save` wrote.

        Raises:
            TraceFormatError: It is not there, or not whole.
        """
        folder = Path(directory)
        try:
            facts = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
            frames = _frames(folder / _ROWS)
        except (OSError, ValueError, pl.exceptions.PolarsError) as error:
            raise TraceFormatError(f"{folder} holds no complete runs: {error}") from error
        return cls(
            tuple(_run(fact, frames.get(at)) for at, fact in enumerate(facts["runs"])),
            tuple(Problem(code, message) for code, message in facts["problems"]),
            facts["subject"],
            facts["levels"],
            facts["environment"],
            Origin(**facts["origin"]) if facts["origin"] else None,
        )


def build(
    collected: Sequence[Collected], settings: Settings, serialised: Collected | None = None
) -> Trace:
    """Return the trace that the runs of one or several processes make.

    Subject, environment and origin are those of the first.

    Args:
        collected: What each process collected.
        settings: How it was measured.
        serialised: What was collected where the host waited for each kernel; it settles
            what is in doubt (`xsp.settle`), and gives `serialised_ns`, but no other number.

    Raises:
        MeasurementError: There is not a single run.
    """
    runs = [
        replace(run, process=number) for number, one in enumerate(collected) for run in one.runs
    ]
    if not runs:
        raise MeasurementError(
            "there is not a single complete evaluation to make a trace of: the target raised, or "
            "was interrupted, before its first one ended; let it run longer"
        )
    if serialised is None:
        return _trace(collected, settings, runs)
    found = settle(runs, serialised.runs)
    plain = _trace(_told_anew(collected, found), settings, found.runs)
    return _with_serialised(plain, build([serialised], settings))


def _trace(collected: Sequence[Collected], settings: Settings, runs: Sequence[Run]) -> Trace:
    merged = merge(runs, statistic=settings.statistic)
    return Trace(merged.spans, _metadata(collected, merged, settings), merged.runs)


def _told_anew(collected: Sequence[Collected], found: Settled) -> list[Collected]:
    """Return what was collected, its doubts as they are after a serialised run."""
    anew = {code for code in DOUBTS if code in found.done or code in found.left}
    told = [
        replace(one, problems=tuple(p for p in one.problems if p.code not in anew))
        for one in collected
    ]
    problems = [settled(found.done)] if found.done else []
    problems += [caveat(code, counts, serialised=True) for code, counts in found.left.items()]
    return [replace(told[0], problems=(*problems, *told[0].problems)), *told[1:]]


def _with_serialised(trace: Trace, there: Trace) -> Trace:
    """Return the trace with the latencies that its spans have in a serialised measurement."""
    exact = pl.col("attributes").struct.field("exact") & pl.col("device").is_null()
    latencies = there.spans.filter(exact & pl.col("kind").is_in(_SERIALISED)).select(
        "span_id", serialised_ns="latency_ns"
    )
    joined = trace.spans.join(latencies, on="span_id", how="left", maintain_order="left")
    field = pl.col("attributes").struct.with_fields(serialised_ns="serialised_ns")
    root = there.root
    rung = dict.fromkeys(trace.metadata["rungs"][0]) | {
        "rung": "serialised",
        "runs": root.runs,
        "latency_ns": root.latency_ns,
        "latency_low_ns": root.latency_low_ns,
        "latency_high_ns": root.latency_high_ns,
    }
    metadata = {**trace.metadata, "rungs": [*trace.metadata["rungs"], rung]}
    metadata["problems"] = [*trace.metadata["problems"], *_new_problems(trace, there)]
    return Trace(joined.with_columns(field).drop("serialised_ns"), metadata, trace.runs)


def _new_problems(trace: Trace, there: Trace) -> list[dict[str, str]]:
    """Return what is wrong with a serialised measurement alone; its doubts are told already."""
    known = {problem.message for problem in trace.problems}
    return [
        {"code": problem.code, "message": f"in the serialised run: {problem.message}"}
        for problem in there.problems
        if problem.code not in DOUBTS and problem.message not in known
    ]


def _metadata(collected: Sequence[Collected], merged: Merged, settings: Settings) -> dict[str, Any]:
    levels = {label: state for one in collected for label, state in one.levels.items()}
    left_out = [
        Problem("level-left-out", f"the {label} level is left out: {state}")
        for label, state in levels.items()
        if state != MEASURED
    ]
    told = [problem for one in collected for problem in one.problems]
    problems = dict.fromkeys((*told, *merged.problems, *left_out))
    return {
        "format": FORMAT,
        "xsp_version": __version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "name": collected[0].subject,
        "problems": [{"code": p.code, "message": p.message} for p in problems],
        "levels": levels,
        "rungs": merged.rungs.to_dicts(),
        "plan": settings.to_json(),
        "environment": dict(collected[0].environment),
        **_beginning(collected[0].origin),
    }


def _beginning(origin: Origin | None) -> dict[str, Any]:
    if origin is None:
        return {}
    return {
        "began_unix_ns": origin.unix_ns,
        "traceparent": origin.traceparent,
        "tracestate": origin.tracestate,
    }


def _run_facts(run: Run) -> dict[str, Any]:
    return {
        "kinds": sorted(kind.value for kind in run.rung.kinds),
        "detail": run.rung.detail,
        "aside": run.rung.aside,
        "latency_ns": run.latency_ns,
        "round": run.round,
        "host_ns": run.host_ns,
    }


def _run(fact: Mapping[str, Any], rows: pl.DataFrame | None) -> Run:
    rung = Rung(frozenset(Kind(kind) for kind in fact["kinds"]), fact["detail"], fact["aside"])
    return Run(rung, fact["latency_ns"], rows, round=fact["round"], host_ns=fact["host_ns"])


def _frames(path: Path) -> dict[int, pl.DataFrame]:
    if not path.exists():
        return {}
    parts = pl.read_parquet(path).partition_by("run", as_dict=True, include_key=False)
    return {int(key[0]): frame for key, frame in parts.items()}
