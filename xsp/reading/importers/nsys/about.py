"""Reads facts about a recording of Nsight Systems: names, environment and warnings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import polars as pl

from xsp.reading.importers.nsys.database import Database
from xsp.reading.importers.nsys.table import PROCESS

_FACTS = {"name": pl.String, "value": pl.String}
_SYSTEM, _CAPTURE = "TARGET_INFO_SYSTEM_ENV", "META_DATA_CAPTURE"
# Tables of facts about the export and the recording, in the order in which they count.
_METADATA = ("META_DATA_EXPORT", "EXPORT_META_DATA", _CAPTURE)
_VARIABLE = re.compile(r'^(?P<name>\w+)="?(?P<value>[^"]*)"?$')
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
_MOST_SAID = 3
_WARNING, _ERROR = 2, 3  # of ENUM_DIAGNOSTIC_SEVERITY_LEVEL


def tool(database: Database) -> str:
    """Return the tool and, as far as the file tells it, the tool's version."""
    for name in _METADATA:
        if version := _facts(database, name).get("EXPORT_PRODUCT_VERSION"):
            return f"Nsight Systems {version}"
    return "Nsight Systems"


def unix_ns(database: Database) -> int | None:
    """Return the wall-clock time at time 0 of all events; None if the file does not tell."""
    times = database.read("TARGET_INFO_SESSION_START_TIME", {"utcEpochNs": pl.Int64})
    known = times["utcEpochNs"].drop_nulls()
    return int(known[0]) if len(known) and known[0] > 0 else None


def host(database: Database) -> str:
    """Return the name of the machine that was recorded; empty if unknown."""
    facts = _facts(database, _SYSTEM) | _facts(database, _CAPTURE)
    return facts.get("Hostname") or facts.get("DEVICE_DISPLAY_NAME") or ""


def environment(database: Database, process: int) -> dict[str, Any]:
    """Return where a process was recorded: names of its devices, the machine, versions."""
    facts = _facts(database, _SYSTEM)
    version = facts.get("CudaDriverVersion", "")
    versions = {
        "nvidia_driver": facts.get("NvDriverVersion"),
        # Written as 12040 for 12.4.
        "cuda": f"{int(version) // 1000}.{int(version) % 1000 // 10}"
        if version.isdigit()
        else None,
    }
    told = {
        "host": host(database),
        "pid": pid(process),
        "cpu": facts.get("CpuDescription"),
        "machine": facts.get("CpuArchitecture"),
        "os": facts.get("OsDescription"),
        "devices": devices(database, process),
        "versions": {name: found for name, found in versions.items() if found},
    }
    return {name: fact for name, fact in told.items() if fact}


def devices(database: Database, process: int) -> list[str]:
    """Return the names of a process's GPUs in the order of their CUDA numbers."""
    gpus = database.read("TARGET_INFO_GPU", {"id": pl.Int64, "name": pl.String}).drop_nulls()
    numbers = {"gpuId": pl.Int64, "cudaId": pl.Int64, "pid": pl.Int64}
    of_all = database.read("TARGET_INFO_CUDA_DEVICE", numbers)
    own = of_all.filter(pl.col("pid") == pid(process)).unique("cudaId").sort("cudaId")
    names = dict(gpus.iter_rows())
    return [names[gpu] for gpu in own["gpuId"] if gpu in names] or gpus["name"].to_list()


def process_name(database: Database, process: int, *, sole: bool) -> str:
    """Return the name of a process: the script or program that Nsight started, else its own.

    The rest of the command line is left out, for it may hold credentials.

    Args:
        database: The file.
        process: The process.
        sole: Whether the file holds no other process.
    """
    read = database.read(_CAPTURE, _FACTS).drop_nulls()
    words = read.filter(pl.col("name").str.contains(r"^PROCESS_0:(COMMAND|ARGUMENT_\d+)$"))
    scripts = [word for word in words["value"] if word.endswith(".py")]
    if sole and (found := [*scripts, *words["value"]]):
        return PurePath(found[0]).name
    schema = {"globalPid": pl.Int64, "name": pl.String}
    names = database.read("PROCESSES", schema).filter(pl.col("globalPid") == process)["name"]
    own = PurePath(names.drop_nulls()[-1]).name if names.drop_nulls().len() else "process"
    return own if sole else f"{own} {pid(process)}"


def rank(database: Database, process: int, *, sole: bool) -> int | None:
    """Return the number of a process among those of a distributed program; None if unknown.

    A launcher tells the number by a variable, which is recorded of the process that Nsight
    started alone.
    """
    ranks = database.read("MPI_RANKS", {"globalTid": pl.Int64, "rank": pl.Int64}).drop_nulls()
    own = ranks.filter(pl.col("globalTid") // PROCESS == process // PROCESS)["rank"]
    if len(own):
        return int(own[0])
    variables = _variables(database) if sole else {}
    said = [variables[name] for name in _RANKS if variables.get(name, "").isdigit()]
    return int(said[0]) if said else None


def pid(process: int) -> int:
    """Return the operating system's number of a process.

    >>> pid(281641842900992)
    9946
    """
    return process // PROCESS % PROCESS


def warnings(database: Database) -> list[str]:
    """Return the warnings and errors that Nsight itself recorded."""
    schema = {"severity": pl.Int64, "text": pl.String}
    said = database.read("DIAGNOSTIC_EVENT", schema).drop_nulls()
    serious = said.filter(pl.col("severity").is_in([_WARNING, _ERROR])).sort(
        "severity", descending=True, maintain_order=True
    )
    # Of several lines the first says what happened; the others are details of it.
    first = serious["text"].str.strip_chars().str.split("\n").list.first().str.strip_chars(". ")
    kept = first.unique(maintain_order=True).to_list()
    more = len(kept) - _MOST_SAID
    return kept if more <= 0 else [*kept[:_MOST_SAID], f"and {more} more"]


def _facts(database: Database, table: str) -> dict[str, str]:
    return dict(database.read(table, _FACTS).drop_nulls().iter_rows())


def _variables(database: Database) -> Mapping[str, str]:
    read = database.read(_CAPTURE, _FACTS).drop_nulls()
    texts = read.filter(pl.col("name") == "PROCESS_0:ENVIRONMENT_VARIABLE")["value"]
    found = (_VARIABLE.match(text) for text in texts)
    return {match["name"]: match["value"] for match in found if match}
