"""Keeps the visits of a session in one file, of which any machine makes the same trace.

The file is a zip archive: `manifest.json` with times and settings, and for every visit and
provider a member with the provider's packed records.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from xsp import __version__
from xsp.errors import ProviderError, TraceFormatError
from xsp.level import MEASURED, Kind
from xsp.machine import replacing
from xsp.matching import Pass
from xsp.measuring.call.callable import visit_all
from xsp.progress import Progress
from xsp.provider import Provider, Records, pack, unpack
from xsp.reading.runs import ProcessRuns, build_trace, interpret
from xsp.record.session import (
    InsideCost,
    PlannedVisit,
    Session,
    Settings,
    Visit,
    describe_environment,
    installed_providers,
    worth_keeping,
)
from xsp.trace import Trace
from xsp.trace_context import Origin
from xsp.warning import TraceWarning

FORMAT = 5
_MANIFEST = "manifest.json"
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError)  # raised on a damaged zip archive


@dataclass(frozen=True, slots=True)
class Recording:
    """The visits of a measurement with their records, not yet interpreted.

    Attributes:
        visits: Visits that count, and warm-up visits in which CUDA graphs may have been
            captured (`session.worth_keeping`).
        providers: Providers of the session, in their order.
        warnings: Warnings of the session.
        subject: Name of the model or function that was measured, for people.
        levels: For every level asked for, "measured" or why the level is left out.
        settings: How the session measured.
        environment: The machine, and the process at the end of the measurement.
        origin: When the measurement began, and inside whose span.
        inside_costs: What recording costs inside spans, as the session measured it.
    """

    visits: tuple[Visit, ...]
    providers: tuple[Provider, ...]
    warnings: tuple[TraceWarning, ...]
    subject: str
    levels: Mapping[str, str]
    settings: Settings
    environment: Mapping[str, Any]
    origin: Origin
    inside_costs: tuple[InsideCost, ...] = ()

    def trace(self) -> Trace:
        """Interpret the records, as after every measurement, and return the trace."""
        interpretation = interpret(self.visits, self.providers, inside_costs=self.inside_costs)
        runs = ProcessRuns(
            runs=interpretation.runs,
            warnings=tuple(dict.fromkeys((*self.warnings, *interpretation.warnings))),
            subject=self.subject,
            levels=self.levels,
            environment=self.environment,
            origin=self.origin,
            counts=interpretation.counts,
        )
        return build_trace([runs], self.settings)

    def save(self, path: str | Path) -> Path:
        """Write the recording to a file, and return the file's path.

        Raises:
            ExportError: The file could not be written; nothing is left behind.
        """
        warnings = dict.fromkeys(self.warnings)
        with (
            replacing(Path(path)) as file,
            zipfile.ZipFile(file, "w", compression=zipfile.ZIP_DEFLATED) as archive,
        ):
            visits = [
                _facts(visit) | {"records": _write(archive, number, visit, warnings)}
                for number, visit in enumerate(self.visits)
            ]
            manifest = {
                "format": FORMAT,
                "xsp_version": __version__,
                "subject": self.subject,
                "levels": dict(self.levels),
                "settings": self.settings.to_json(),
                "origin": asdict(self.origin),
                "warnings": [asdict(warning) for warning in warnings],
                "providers": [provider.name for provider in self.providers],
                "inside_costs": [asdict(cost) for cost in self.inside_costs],
                "visits": visits,
                "environment": dict(self.environment),
            }
            archive.writestr(_MANIFEST, json.dumps(manifest, indent=1))
        return Path(path)


def record(
    function: Callable[..., Any],
    *args: Any,
    settings: Settings,
    progress: bool | Progress | None = None,
) -> Recording:
    """Measure `function(*args)` in this process, and return the recording.

    Raises:
        TypeError: A call of `function` only makes a coroutine or a generator.
        MeasurementError: Another profile is running in this process.
    """
    settings = replace(settings, monitor=False)  # the file does not hold readings
    session, selection, subject = visit_all(function, args, settings=settings, progress=progress)
    return recording_of(session, levels=selection.levels, subject=subject, settings=settings)


def recording_of(
    session: Session, *, levels: Mapping[str, str], subject: str, settings: Settings
) -> Recording:
    """Return the recording of the visits that a session has made so far."""
    inside_costs = session.inside_costs()  # may note a warning
    return Recording(
        visits=tuple(worth_keeping(session.visits)),
        providers=session.providers,
        warnings=session.warnings,
        subject=subject,
        levels=levels,
        settings=settings,
        environment=describe_environment(),
        origin=session.origin,
        inside_costs=inside_costs,
    )


def load(path: str | Path, providers: Iterable[Provider] | None = None) -> Recording:
    """Read a recording.

    Args:
        path: The file.
        providers: Providers that interpret the records; by default all that are installed.

    Raises:
        TraceFormatError: The file is no recording or damaged, or a provider is not installed.
    """
    known = installed_providers() if providers is None else providers
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = _manifest(archive)
            return _read(archive, manifest, {provider.name: provider for provider in known})
    # The message is complete but for the name of the file.
    except TraceFormatError as error:
        raise TraceFormatError(f"{path}: {error}") from error
    except FileNotFoundError as error:
        raise TraceFormatError(f"No such file: {path}. xsp record makes one.") from error
    except (*_DAMAGE, OSError, ValueError, KeyError, TypeError) as error:
        raise TraceFormatError(
            f"{path} is no recording of this xsp ({error}). xsp record makes one."
        ) from error


def warning_sentences(path: Path) -> list[str]:
    """Return the warnings of a saved recording, and the levels left out, a sentence each."""
    with zipfile.ZipFile(path) as archive:
        manifest = _manifest(archive)
    # The manifest is enough: records are neither unpacked nor interpreted.
    left_out = (
        f"the {label} level is left out: {state}"
        for label, state in manifest["levels"].items()
        if state != MEASURED
    )
    warnings = (warning["message"] for warning in manifest["warnings"])
    records = (member for visit in manifest["visits"] for member in visit["records"])
    of_records = (sentence for member in records for sentence in member["warnings"])
    return list(dict.fromkeys((*left_out, *warnings, *of_records)))


def _manifest(archive: zipfile.ZipFile) -> dict[str, Any]:
    text = archive.read(_MANIFEST).decode()
    manifest: dict[str, Any] = json.loads(text)
    if manifest["format"] == 4:  # had other names for the same entries
        renamed = text.replace('"problems":', '"warnings":').replace('"evaluations":', '"calls":')
        manifest = json.loads(renamed) | {"format": FORMAT}
    return manifest


def _write(
    archive: zipfile.ZipFile, number: int, visit: Visit, warnings: dict[TraceWarning, None]
) -> list[dict[str, Any]]:
    """Write the records of a visit; return their members, and add a warning for each failure."""
    written = []
    for provider, records in visit.records:
        name = f"visits/{number:04}/{provider.name}"
        try:
            # Records that cannot be packed cost their provider only, as in a measurement.
            archive.writestr(name, pack(provider, records))
        except ProviderError as error:
            not_kept = TraceWarning(
                "not-kept",
                f"the file lacks the spans of {provider.name}, because its records cannot be "
                "saved: "
                f"{error}",
            )
            warnings[not_kept] = None
            continue
        about = {"dropped": records.dropped, "warnings": list(records.warnings)}
        written.append({"provider": provider.name, "file": name, **about})
    return written


def _facts(visit: Visit) -> dict[str, Any]:
    step, pass_ = visit.planned, visit.planned.pass_
    return {
        "kinds": sorted(kind.value for kind in pass_.kinds),
        "detail": pass_.detail,
        "sampled": pass_.sampled,
        "calls": step.calls,
        "untimed": step.untimed,
        "round": step.round,
        "name": visit.name,
        "thread": visit.thread,
        "windows": visit.windows,
        "waited_ns": visit.waited_ns,
        "page_faults": visit.page_faults,
    }


def _read(
    archive: zipfile.ZipFile, manifest: Mapping[str, Any], providers: Mapping[str, Provider]
) -> Recording:
    if manifest["format"] != FORMAT:
        raise ValueError(f"its format is {manifest['format']}, not {FORMAT}")
    missing = sorted(set(manifest["providers"]) - providers.keys())
    if missing:
        raise TraceFormatError(
            f"A level of this recording is not installed ({', '.join(missing)}). Install its "
            "package."
        )
    return Recording(
        visits=tuple(_visit(archive, facts, providers) for facts in manifest["visits"]),
        providers=tuple(providers[name] for name in manifest["providers"]),
        warnings=tuple(TraceWarning(**warning) for warning in manifest["warnings"]),
        subject=manifest["subject"],
        levels=manifest["levels"],
        settings=Settings.from_json(manifest["settings"]),
        environment=manifest["environment"],
        origin=Origin(**manifest["origin"]),
        inside_costs=tuple(
            InsideCost(**cost | {"kind": Kind(cost["kind"])}) for cost in manifest["inside_costs"]
        ),
    )


def _visit(
    archive: zipfile.ZipFile, facts: Mapping[str, Any], providers: Mapping[str, Provider]
) -> Visit:
    kinds = frozenset(Kind(kind) for kind in facts["kinds"])
    # Recordings of earlier versions have no samples.
    pass_ = Pass(kinds, facts["detail"], facts.get("sampled", False))
    records: list[tuple[Provider, Records]] = []
    for kept in facts["records"]:
        provider = providers[kept["provider"]]
        records.append((provider, unpack(provider, archive.read(kept["file"]))))
    empty = facts["round"] >= 0 and not facts["windows"]  # warming up can be without steps
    if empty or len(facts["windows"]) != len(facts["waited_ns"]):
        raise ValueError("a visit has no steps, or not as many waits as steps")
    return Visit(
        planned=PlannedVisit(pass_, facts["calls"], facts["untimed"], facts["round"]),
        name=facts["name"],
        thread=facts["thread"],
        windows=tuple((begin, end) for begin, end in facts["windows"]),
        records=tuple(records),
        waited_ns=tuple(facts["waited_ns"]),
        page_faults=facts["page_faults"],
    )
