"""Diagnoses this machine for `xsp doctor`: levels, providers, versions and disturbances."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import msgspec

from xsp.level import Level
from xsp.machine import keep_peaks, kept_peaks, measure_peaks
from xsp.record.session import Listed, describe_environment, disturbances, listed_providers
from xsp.show.cli import terminal
from xsp.show.cli.framework import in_words, started_frameworks
from xsp.text import counted

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_UNMEASURED = "not measured: xsp doctor --peak, and analyses know this machine's roof"


def measure_peak() -> None:
    """Measure what this machine does at most, and keep that; progress goes to standard error.

    Raises:
        MeasurementError: It could not be measured.
        ExportError: The file that keeps it could not be written.
    """
    facts = describe_environment()
    numbers = sorted({1, max(1, int(facts["usable_cores"]))})
    found = measure_peaks(facts["cpu"], numbers, lambda what: terminal.say(f"measuring {what} …"))
    keep_peaks(facts["host_id"], found)


def diagnosis(*, frameworks: bool = False) -> dict[str, Any]:
    """Return levels, providers, environment and disturbances as values that JSON can hold.

    `peaks` is what `measure_peak` kept of this machine: rates with one thread and with all, empty
    where that was never measured. `levels` maps the label of each level to whether a provider of
    the level works here. `frameworks` says how each framework that was started computes here.

    Args:
        frameworks: Whether to start the frameworks that are installed, which takes seconds.
    """
    providers = listed_providers()
    usable = {each.level for each in providers if each.reason is None and each.kinds}
    environment = describe_environment()
    if frameworks:
        environment["frameworks"] = started_frameworks(environment["versions"])
    return {
        "levels": {level.label: level in usable for level in Level},
        "providers": [_provider(provider) for provider in providers],
        "environment": environment,
        "peaks": [msgspec.to_builtins(kept) for kept in kept_peaks(environment["host_id"])],
        "disturbances": list(disturbances()),
    }


def summary(found: dict[str, Any], width: int) -> str:
    """Word a diagnosis in about five lines, which say what to do where something is missing."""
    lines = []
    for level, title in _TITLES.items():
        here = [provider for provider in found["providers"] if provider["level"] == level.label]
        usable = [each for each in here if not each["unavailable"]]
        missing = [each for each in here if each["unavailable"] and each["name"] != "system"]
        if not here and level is Level.SYSTEM:
            continue
        if level is Level.SYSTEM and usable:
            lines += _folded([part for each in usable for part in _things(each)])
            lines += [("✗", title, _reason(each)) for each in missing]
            continue
        names = [_called(each["name"], found["environment"]) for each in usable]
        off = [each for each in missing if str(each["unavailable"]).startswith("off")]
        if usable:
            said = " · ".join(names)
            said += "".join(f" - {_called(each['name'], {})} {_reason(each)}" for each in off)
        else:
            said = _reason(missing[0]) if missing else "no provider is installed"
        lines.append(("✓" if usable else "✗", title, said))
    lines += [
        ("✗", each["name"], f"broken: {each['unavailable']}")
        for each in found["providers"]
        if each["level"] is None
    ]
    lines += [("✓", "peak", _peak(kept)) for kept in found["peaks"][-1:]]  # of all threads
    noise = found["disturbances"]
    more = f" (and {len(noise) - 1} more)" if len(noise) > 1 else ""
    lines.append(("!", "noise", f"{noise[0]}{more}") if noise else ("✓", "noise", "none found"))
    indent = max(len(title) for _, title, _ in lines) + 4
    wide = max(min(width, 100), indent + 20)
    text = [
        textwrap.fill(
            said,
            wide,
            initial_indent=f"{sign} {title}".ljust(indent),
            subsequent_indent=" " * indent,
            break_on_hyphens=False,
        )
        for sign, title, said in lines
    ]
    return "\n".join((*text, "details: xsp doctor --verbose"))


# What users call the spans of a level.
_TITLES = {
    Level.FRAMEWORK: "layers, operators",
    Level.LIBRARY: "library calls",
    Level.KERNEL: "GPU kernels",
    Level.SYSTEM: "system calls",
}
_NAMES = {
    "torch": "PyTorch",
    "tensorflow": "TensorFlow",
    "jax": "JAX",
    "onnxruntime": "ONNX Runtime",
    "onednn": "oneDNN",
    "mkl": "MKL",
    "openblas": "OpenBLAS",
    "cudnn": "cuDNN",
    "cublas": "cuBLAS",
    "cupti": "CUPTI",
}


def _called(name: str, environment: dict[str, Any]) -> str:
    """Return the name of a provider, with the version of its framework."""
    version = str(environment.get("versions", {}).get(name, "")).partition("+")[0]
    return " ".join(filter(None, (_NAMES.get(name, name), ".".join(version.split(".")[:2]))))


def _folded(lines: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Join the titles of lines that say the same, such as `yes` or one remedy.

    >>> _folded([("✓", "waits", "yes"), ("✗", "calls", "no; mount"), ("✓", "faults", "yes")])
    [('✓', 'waits, faults', 'yes'), ('✗', 'calls', 'no; mount')]
    """
    titles: dict[tuple[str, str], list[str]] = {}
    for sign, title, said in lines:
        titles.setdefault((sign, said), []).append(title)
    return [(sign, ", ".join(names), said) for (sign, said), names in titles.items()]


def _things(provider: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return a line for each thing that a provider of the system level can watch or cannot."""
    remarks = str(provider.get("remark") or f"system calls: {provider['name']}").splitlines()
    parts = [remark.partition(": ") for remark in remarks]
    things = [("✗" if said.startswith("no") else "✓", title, said) for title, _, said in parts]
    if provider["name"] != "monitor":
        return things
    readable = [thing for thing in things if thing[0] == "✓"]
    if any(title != "host counters" for _, title, _ in readable):
        return readable
    return [*readable, ("✗", "energy", "no; this machine shows no counters of a GPU or processor")]


def _reason(provider: dict[str, Any]) -> str:
    return str(provider["unavailable"]).removeprefix("there is ")


def render(found: dict[str, Any], console: Console) -> None:
    """Print a diagnosis for people on a rich console."""
    console.print(_levels(found), _machine(found["environment"], found["peaks"]), sep="\n")
    if not found["disturbances"]:
        console.print("Nothing was found that disturbs measurements here.", highlight=False)
        return
    console.print("[bold]What disturbs measurements here[/bold]")
    for sentence in found["disturbances"]:
        console.print(f"! {sentence}", markup=False, highlight=False)


def _provider(listed: Listed) -> dict[str, Any]:
    remark = {"remark": listed.remark} if listed.remark else {}
    return {
        "name": listed.name,
        "level": listed.level.label if listed.level is not None else None,
        "kinds": [kind.value for kind in listed.kinds],
        "unavailable": listed.reason,
        **remark,
    }


def _levels(found: dict[str, Any]) -> Table:
    from rich.markup import escape  # noqa: PLC0415  # rich is slow to import

    table = _table("Levels", "", "level", "provider", "sees", "here")
    for level in Level:
        providers = [p for p in found["providers"] if p["level"] == level.label]
        for provider in providers:
            kinds = ", ".join(provider["kinds"])
            state = escape(_state(provider))
            table.add_row(str(int(level)), level.label, provider["name"], kinds, state)
        if not providers:
            nothing = "no: install a package that has a provider of it (entry points xsp.levels)"
            table.add_row(str(int(level)), level.label, "-", "-", nothing)
    for provider in found["providers"]:
        if provider["level"] is None:
            reason = escape(f"broken: {provider['unavailable']}")
            table.add_row("?", "?", provider["name"], "-", reason)
    return table


def _state(provider: dict[str, Any]) -> str:
    if provider["unavailable"]:
        return str(provider["unavailable"])
    return f"yes: {provider['remark']}" if provider.get("remark") else "yes"


def _machine(facts: dict[str, Any], peaks: list[dict[str, Any]]) -> Table:
    from rich.markup import escape  # noqa: PLC0415  # rich is slow to import

    table = _table("Machine and versions", "", "")
    table.show_header = False
    cores = f"{facts['cores'] or '?'} cores, {facts['logical_cores']} logical, "
    table.add_row("processor", f"{facts['cpu']} ({cores}{facts['usable_cores']:g} usable)")
    table.add_row("memory", f"{facts['memory_bytes'] / 1e9:.1f} GB")
    table.add_row("system", facts["os"])
    for words in [_peak(kept) for kept in peaks] or [_UNMEASURED]:
        table.add_row("peak", words)
    for gpu in facts["gpus"] or [{"name": "none found", "driver": "", "memory": ""}]:
        driver = f"(driver {gpu['driver']}, {gpu['memory']})" if gpu["driver"] else ""
        table.add_row("GPU", f"{gpu['name']} {driver}".strip())
    table.add_row("Python", f"{facts['python']} ({facts['python_implementation']})")
    frameworks = facts["frameworks"]
    for package, version in facts["versions"].items():
        known = f" ({in_words(frameworks[package])})" if package in frameworks else ""
        table.add_row(package, escape(f"{version}{known}"))
    for name, value in facts["choices"].items():
        table.add_row(name, escape(value))
    return table


def _peak(kept: dict[str, Any]) -> str:
    flops, moved = kept["flops_per_s"] / 1e9, kept["bytes_per_s"] / 1e9
    threads = counted(kept["threads"], "thread")
    return f"{flops:.1f} GFLOP/s and {moved:.1f} GB/s with {threads} ({kept['by']})"


def _table(title: str, *columns: str) -> Table:
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415  # rich is slow to import
    from rich.table import Table  # noqa: PLC0415

    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    for column in columns:
        # Names of levels and providers stay whole; reasons and other names may wrap.
        table.add_column(column, overflow="fold", no_wrap=column in ("level", "provider"))
    return table
