"""The tools of `overhead_table.py`: how each is switched on, what it records, who reads its file.

A tool either starts the program (`wrap`) or is switched on inside its process (`begin`, `end`). To
add one, add a row to `_ALL`. Importing this module imports no tool.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tool_readings as read
from tool_readings import Calls, Reading

GROUPS = {
    "python": "Python",
    "operators": "Layers and operators",
    "memory": "Memory",
    "system": "Operating system",
    "monitors": "Monitors",
    "devices": "Devices",
}
_PERFMON = "CAP_PERFMON or root"
_NEEDS_GPU = "needs a GPU"
# One for each call, with the sum of its durations: what `strace -c` prints.
_BPFTRACE = """
tracepoint:raw_syscalls:sys_enter /pid == cpid/ { @begin[tid] = nsecs; }
tracepoint:raw_syscalls:sys_exit /pid == cpid && @begin[tid]/ {
  @calls[args->id] = count(); @ns[args->id] = sum(nsecs - @begin[tid]); delete(@begin[tid]);
}
END { clear(@begin); }
"""

Wrap = Callable[[Sequence[str], Path], list[str]]
Begin = Callable[[Path], AbstractContextManager[Any]]
End = Callable[[Any, Path], object]


def _plain(command: Sequence[str], _: Path) -> list[str]:
    return list(command)


def _off(_: Path) -> AbstractContextManager[Any]:
    return nullcontext()


@dataclass(frozen=True, slots=True)
class Tool:
    """One row of the table.

    Attributes:
        name: Name of the row.
        group: Key of `GROUPS`.
        records: What it records.
        package: Distribution or command whose version the row has.
        wrap: Makes the command that starts the program, and the folder of its files, the command
            under the tool.
        begin: Makes the context in which the tool is on in the process, from the folder.
        end: Writes the file, from what the context gave and the folder.
        read: Reads the file.
        privileges: Rights that it needs beyond the user's own.
        turns: How many times as many turns it needs: a block of xsp records different things
            at different times.
        absent: Says why the tool cannot run here; None if it can.
    """

    name: str
    group: str
    records: str
    package: str
    wrap: Wrap = _plain
    begin: Begin = _off
    end: End = lambda active, folder: None
    read: Callable[[Path, Calls], Reading] = read.nothing
    privileges: str = "none"
    turns: int = 1
    absent: Callable[[], str | None] = field(default=lambda: None)

    @property
    def inside(self) -> bool:
        """Whether it is switched on inside the program's process."""
        return self.begin is not _off

    @property
    def missing(self) -> str | None:
        """Why it cannot run here; None if it can."""
        why = self.absent()
        if why is None and not (shutil.which(self.package) or _installed(self.package)):
            return f"{self.package} is not installed"
        return why

    @property
    def version(self) -> str:
        """Version of the package or command."""
        if _installed(self.package):
            return version(self.package)
        done = subprocess.run(
            [self.package, "--version"], capture_output=True, text=True, check=False
        )
        words = done.stdout.split("\n")[0].split()
        return words[-1].lstrip("v") if words else ""


def _installed(package: str) -> bool:
    try:
        version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _script(*words: str) -> Wrap:
    """Return a wrapper for tools that stand before the command; `{}` is the folder."""
    return lambda command, folder: [*(word.format(folder) for word in words), *command]


def _module(*words: str, separator: Sequence[str] = ()) -> Wrap:
    """Return a wrapper for tools of Python, which start the script themselves."""

    def wrap(command: Sequence[str], folder: Path) -> list[str]:
        python, script, *arguments = command
        own = [word.format(folder) for word in words]
        return [python, "-m", *own, script, *separator, *arguments]

    return wrap


def _pyspy(*options: str) -> Wrap:
    program = shutil.which("py-spy") or str(Path(sys.executable).with_name("py-spy"))
    return _script(
        program, "record", "-o", "{}/stacks", "-f", "raw", "-F", "-r", "100", *options, "--"
    )


def _scalene(command: Sequence[str], folder: Path) -> list[str]:
    """Return the command under scalene, without TensorFlow.

    Scalene imports TensorFlow where it is installed, which ends the process: its LLVM and that of
    Triton cannot be in one.
    """
    (folder / "tensorflow.py").write_text("raise ImportError", encoding="utf-8")
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    wrap = _module("scalene", "run", "--cpu-only", "-o", "{}/profile.json", separator=("---",))
    return ["env", f"PYTHONPATH={path}", *wrap(command, folder)]


def _bpftrace(command: Sequence[str], folder: Path) -> list[str]:
    script = folder / "calls.bt"
    script.write_text(_BPFTRACE, encoding="utf-8")
    return ["bpftrace", "-q", "-o", f"{folder}/lines", str(script), "-c", " ".join(command)]


def _cprofile(_: Path) -> AbstractContextManager[Any]:
    from cProfile import Profile

    return Profile()


def _pyinstrument(_: Path) -> AbstractContextManager[Any]:
    from pyinstrument import Profiler

    return Profiler()


@contextmanager
def _yappi(_: Path) -> Iterator[Any]:
    import yappi

    yappi.start()
    try:
        yield yappi
    finally:
        yappi.stop()


def _viztracer(folder: Path) -> AbstractContextManager[Any]:
    from viztracer import VizTracer

    return VizTracer(output_file=str(folder / "trace.json"), verbose=0)


def _torch(folder: Path, **options: bool) -> AbstractContextManager[Any]:
    from torch.profiler import ProfilerActivity, profile

    return profile(activities=[ProfilerActivity.CPU], **options)


def _chrome(active: Any, folder: Path) -> None:
    active.export_chrome_trace(str(folder / "trace.json"))


@contextmanager
def _annotated(folder: Path) -> Iterator[Any]:
    import tool_models
    from torch.profiler import record_function

    for layer in ("Attention", "FeedForward", "Convolution", "Head"):
        kind = getattr(tool_models, layer)
        kind.forward = record_function(f"layer|{layer}")(kind.forward)
    with _torch(folder) as active:
        yield active


@contextmanager
def _execution_trace(folder: Path) -> Iterator[Any]:
    from torch.profiler import ExecutionTraceObserver

    observer = ExecutionTraceObserver().register_callback(str(folder / "trace.json"))
    observer.start()
    try:
        yield observer
    finally:
        observer.stop()
        observer.unregister_callback()


def _xsp(_: Path, levels: Any, **options: Any) -> AbstractContextManager[Any]:
    import xsp

    return xsp.profile(levels, progress=False, repeat=False, **options)


def _save(active: Any, folder: Path) -> None:
    active.save(folder / "trace.xsp")


class _Pass:
    """One of xsp's passes, armed for the steps of each turn as xsp's own visits are."""

    def __init__(self, name: str) -> None:
        from xsp.level import Kind
        from xsp.matching import Pass, ladder
        from xsp.record.session import registry
        from xsp.record.session.recorder import Session

        if name == "stack":
            self._pass = Pass(frozenset({Kind.REGION}), sampled=True)
        elif name == "system":
            self._pass = Pass(frozenset({Kind.REGION, Kind.SYSCALL}))
        else:
            passes = ladder({Kind.REGION, Kind.LAYER, Kind.OP, Kind.CALL})
            self._pass = next(each for each in passes if each.name == name)
        self._session = Session(registry.installed_providers())
        self._records: list[Any] = []

    @contextmanager
    def visit(self) -> Iterator[None]:
        """Arm the providers of the pass."""
        with self._session.recording(self._pass, whole_model=False) as records:
            yield
        self._records += records

    def save(self, folder: Path) -> None:
        """Write all rows; samples and accounts count as well."""
        import polars as pl

        from xsp.provider import Accountant, Sampler

        if self._session.warnings:
            raise RuntimeError(self._session.warnings[0].message)
        frames = []
        for provider, kept in self._records:
            frames.append(provider.spans(kept))
            if isinstance(provider, Sampler):
                frames.append(pl.DataFrame(provider.samples(kept)))
            if isinstance(provider, Accountant):
                frames.append(pl.DataFrame(provider.accounts(kept)))
        pl.concat(frames, how="diagonal").write_parquet(folder / "rows.parquet")
        lost = sum(kept.dropped for _, kept in self._records)
        (folder / "lost.json").write_text(json.dumps(lost), encoding="utf-8")


def _pass(_: Path, name: str) -> AbstractContextManager[Any]:
    return nullcontext(_Pass(name))


def _codecarbon(folder: Path) -> AbstractContextManager[Any]:
    from codecarbon import OfflineEmissionsTracker

    return OfflineEmissionsTracker(
        country_iso_code="DEU", output_dir=str(folder), log_level="critical"
    )


@contextmanager
def _zeus(_: Path) -> Iterator[Any]:
    from zeus.monitor import ZeusMonitor

    monitor = ZeusMonitor(gpu_indices=[], approx_instant_energy=True)
    monitor.begin_window("steps")
    yield monitor


def _zeus_end(active: Any, folder: Path) -> None:
    measured = active.end_window("steps")
    (folder / "energy.json").write_text(json.dumps(measured.time), encoding="utf-8")


def _no_monitor() -> str | None:
    import xsp

    has = "monitor" in inspect.signature(xsp.profile).parameters
    return None if has else "this version of xsp has no monitor"


def _no_perfmon() -> str | None:
    if not os.access("/sys/kernel/tracing/events", os.R_OK):
        return "needs tracefs: mount -t tracefs nodev /sys/kernel/tracing"
    return None


def _no_powercap() -> str | None:
    return None if Path("/sys/class/powercap/intel-rapl").exists() else "needs RAPL or a GPU"


def _gpu() -> str | None:
    return _NEEDS_GPU


_torch_row = partial(Tool, package="torch", end=_chrome, read=read.kineto)
_xsp_row = partial(Tool, package="xsp", end=_save, read=read.xsp_block, turns=4)
_pass_row = partial(
    Tool, package="xsp", end=lambda active, folder: active.save(folder), read=read.xsp_pass
)
_perf_row = partial(
    Tool, group="system", package="perf", privileges=_PERFMON, read=read.perf_data,
    absent=_no_perfmon,
)  # fmt: skip
_ALL = (
    Tool("none", "none", "nothing: two plain processes", sys.executable),
    Tool(
        "cProfile", "python", "Python calls", sys.executable,
        begin=_cprofile, end=lambda active, to: active.dump_stats(to / "profile"),
        read=read.pstats,
    ),
    Tool(
        "pyinstrument", "python", "Python stacks, each 1 ms", "pyinstrument",
        begin=_pyinstrument, end=lambda active, to: active.last_session.save(to / "session"),
        read=read.pyinstrument,
    ),
    Tool(
        "yappi", "python", "Python calls, CPU time", "yappi", begin=_yappi,
        end=lambda active, to: active.get_func_stats().save(to / "profile", "pstat"),
        read=read.pstats,
    ),
    Tool("viztracer", "python", "Python and C calls", "viztracer",
         begin=_viztracer, read=read.viztracer),
    Tool("py-spy", "python", "Python stacks, 100 Hz", "py-spy",
         wrap=_pyspy(), read=read.pyspy, privileges="ptrace of a child"),
    Tool("py-spy --native", "python", "and stacks of C", "py-spy",
         wrap=_pyspy("-n"), read=read.pyspy, privileges="ptrace of a child"),
    Tool("scalene --cpu-only", "python", "Python lines", "scalene",
         wrap=_scalene),
    _pass_row("xsp, pass stack", "python", "Python stacks, each 50 µs",
              begin=partial(_pass, name="stack")),

    _xsp_row("xsp, levels 1", "operators", "model calls", begin=partial(_xsp, levels=1)),
    _xsp_row("xsp, levels 2", "operators", "layers; operators at times",
             begin=partial(_xsp, levels=2)),
    _xsp_row("xsp, levels 3", "operators", "and library calls", begin=partial(_xsp, levels=3)),
    _pass_row("xsp, pass region", "operators", "model calls", begin=partial(_pass, name="region")),
    _pass_row("xsp, pass layer", "operators", "layers", begin=partial(_pass, name="layer")),
    _pass_row("xsp, pass op", "operators", "layers, operators", begin=partial(_pass, name="op")),
    _pass_row("xsp, pass call", "operators", "layers, operators, library calls",
              begin=partial(_pass, name="call")),
    _torch_row("torch.profiler", "operators", "operators", begin=_torch),
    _torch_row("torch.profiler, record_function", "operators", "operators, two kinds of layers",
               begin=_annotated),
    _torch_row("torch.profiler, shapes", "operators", "operators, shapes",
               begin=partial(_torch, record_shapes=True)),
    _torch_row("torch.profiler, stack", "operators", "operators, Python calls, layers",
               begin=partial(_torch, with_stack=True)),
    _torch_row("torch.profiler, modules", "operators", "operators, layers of TorchScript",
               begin=partial(_torch, with_modules=True)),
    _torch_row("torch.profiler, flops", "operators", "operators, shapes, FLOPs",
               begin=partial(_torch, with_flops=True)),
    _torch_row("torch.profiler, all", "operators", "all of these, and memory",
               begin=partial(_torch, record_shapes=True, profile_memory=True, with_stack=True,
                             with_flops=True, with_modules=True)),
    Tool("ExecutionTraceObserver", "operators", "operators, tensors", "torch",
         begin=_execution_trace, read=read.execution_trace),

    Tool("memray", "memory", "allocations, Python stacks", "memray", read=read.memray,
         wrap=_module("memray", "run", "-q", "-f", "-o", "{}/memory.bin")),
    Tool("memray --native", "memory", "and stacks of C", "memray", read=read.memray,
         wrap=_module("memray", "run", "-q", "-f", "--native", "-o", "{}/memory.bin")),
    _torch_row("torch.profiler, profile_memory", "memory", "operators, allocations of tensors",
               begin=partial(_torch, profile_memory=True)),

    Tool("strace -f", "system", "system calls", "strace", wrap=_script("strace", "-f", "-o",
         "{}/lines"), read=read.lines, privileges="ptrace of a child"),
    Tool("strace -f -c", "system", "system calls, counted", "strace", wrap=_script("strace", "-f",
         "-c", "-o", "{}/lines"), read=read.strace_counts, privileges="ptrace of a child"),
    _perf_row("perf record -g", records="stacks, 999 Hz",
              wrap=_script("perf", "record", "-q", "-g", "-F", "999", "-o", "{}/perf.data")),
    _perf_row("perf trace", records="system calls", read=read.lines,
              wrap=_script("perf", "trace", "-o", "{}/lines")),
    _perf_row("perf sched record", records="switches of all processes",
              wrap=_script("perf", "sched", "record", "-q", "-o", "{}/perf.data")),
    Tool("bpftrace", "system", "system calls, counted and summed", "bpftrace", wrap=_bpftrace,
         read=read.bpftrace, privileges="root", absent=_no_perfmon),
    _xsp_row("xsp, levels 5", "system", "all levels, in turns", begin=partial(_xsp, levels=5),
             privileges=f"none; {_PERFMON} for all of it"),
    _xsp_row("xsp, levels model and system", "system", "system calls, waits, page faults",
             begin=partial(_xsp, levels=("model", "system")),
             privileges=f"none; {_PERFMON} for all of it"),
    _pass_row("xsp, pass system", "system", "system calls, waits, page faults",
              begin=partial(_pass, name="system"),
              privileges=f"none; {_PERFMON} for all of it"),

    Tool("codecarbon", "monitors", "energy, by an estimate", "codecarbon", begin=_codecarbon),
    Tool("zeus", "monitors", "energy", "zeus", begin=_zeus, end=_zeus_end, absent=_no_powercap),
    Tool("nvidia-smi", "monitors", "GPU counters, each 100 ms", "nvidia-smi", absent=_gpu),
    _xsp_row("xsp, monitor", "monitors", "use of processors, memory, devices", turns=1,
             begin=partial(_xsp, levels=1, monitor=True), absent=_no_monitor),

    Tool("nsys", "devices", "CUDA calls, kernels, scheduler", "nsys", absent=_gpu),
    Tool("ncu", "devices", "counters of kernels", "ncu", absent=_gpu),
    Tool("torch.profiler, CUDA", "devices", "operators, kernels", "torch", absent=_gpu),
    Tool("Proton", "devices", "kernels", "triton", absent=_gpu),
    Tool("xsp, levels 4", "devices", "layers, operators, kernels", "xsp", absent=_gpu),
)  # fmt: skip
TOOLS = {tool.name: tool for tool in _ALL}
