"""Checks for the first hour on a GPU, the most harmful failures first.

`python tests/gpu/checks.py` runs every check in a process of its own, for what one does to CUPTI
stays, and prints what was expected and what was seen; `--list` says what there is. It judges only
where the answer is yes or no. benchmarks/results/NVIDIA-H200 has what it printed there.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

LIMIT_S = 300  # of one check; a detail visit was said to be able to hang
SLEEP_CYCLES = 100_000_000  # some 50 ms


@dataclass(frozen=True)
class Check:
    """A question to the machine: what is expected, and what finds out what is so."""

    name: str
    expected: str
    see: Callable[[], Iterator[tuple[str, bool | None]]]


@dataclass(frozen=True)
class Visit:
    """Records of CUPTI's provider of one call."""

    rows: Any
    tables: Any
    warnings: tuple[str, ...]
    dropped: int

    def count(self, kind: str) -> int:
        """Return the number of rows of a kind."""
        return int((self.rows["kind"] == kind).sum())


def visit(
    provider: Any, work: Callable[[], object], *, detail: bool = False, wait: bool = True
) -> Visit:
    """Record one call, and wait for the device before the recording ends, or not."""
    import torch  # noqa: PLC0415

    from xsp.clock import SystemClock  # noqa: PLC0415
    from xsp.level import Kind  # noqa: PLC0415
    from xsp.provider import Request  # noqa: PLC0415

    provider.start(SystemClock(), Request(frozenset(Kind), detail=detail))
    try:
        work()
        if wait:
            torch.cuda.synchronize()
    finally:
        kept = provider.stop()
    tables = getattr(kept.data, "tables", {})
    return Visit(provider.spans(kept), tables, kept.warnings, kept.dropped)


def cupti_provider() -> Any:
    """Return a provider of the kernel level, or end the check with the reason why there is none."""
    from xsp_levels.kernel.cupti.provider import Cupti  # noqa: PLC0415

    provider = Cupti()
    if reason := provider.unavailable():
        sys.exit(f"level 4 is not there: {reason}")
    return provider


@contextmanager
def torch_profiler() -> Iterator[None]:
    """Have PyTorch's own profiler record the block, with kernels."""
    from torch.profiler import ProfilerActivity, profile  # noqa: PLC0415

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]):
        yield


def together() -> Iterator[tuple[str, bool | None]]:
    """Level 3 and 4 in this process, and in processes of their own."""
    import scenes  # noqa: PLC0415
    import torch  # noqa: PLC0415

    import xsp  # noqa: PLC0415
    from xsp.measuring.target import isolation  # noqa: PLC0415
    from xsp.measuring.target.spec import Spec  # noqa: PLC0415
    from xsp.record.session.settings import settings_of  # noqa: PLC0415

    yield f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}", None
    here = xsp.measure(scenes.attention, levels=4, runs=3, progress=False)
    spec = Spec(f"{scenes.__file__}:attention")
    there = isolation.measure_isolated(spec, settings_of(4, runs=3))
    for where, trace in (("this process", here), ("processes of their own", there)):
        kernels = int((trace.spans["kind"] == "kernel").sum())
        yield f"in {where}: {kernels} kernels", kernels > 0
        for warning in trace.warnings:
            yield f"in {where}: {warning.code}: {warning.message}", None


def clock() -> Iterator[tuple[str, bool | None]]:
    """CUPTI's clock against the wall clock, before CUDA, with CUDA, and after another profiler."""
    import torch  # noqa: PLC0415

    from xsp_levels.kernel.cupti import library  # noqa: PLC0415

    cupti = library.vendor()

    def read(when: str) -> tuple[str, None]:
        ours, theirs = time.time_ns(), cupti.get_timestamp()
        time.sleep(0.1)
        passed = time.time_ns() - ours
        rate = (cupti.get_timestamp() - theirs) / passed
        return f"{when}: {(theirs - ours) / 1e3:.3f} µs off, {rate:.6f} in a nanosecond", None

    yield read("before CUDA")
    torch.ones(4, device="cuda").sum().item()
    yield read("with CUDA")
    with torch_profiler():
        torch.ones(4, device="cuda").sum().item()
    yield read("after a session of torch.profiler")


def order() -> Iterator[tuple[str, bool | None]]:
    """Whether kernels begin after their launches, after sessions of Kineto if that is possible."""
    import scenes  # noqa: PLC0415
    import torch  # noqa: PLC0415

    provider = cupti_provider()
    for number in range(2 if _release(torch.__version__) >= (2, 15) else 0):
        with torch_profiler():
            scenes.attention()
        yield f"session {number + 1} of torch.profiler", None
    for number in range(3):
        found = visit(provider, scenes.attention)
        least = _least_delay_ns(found.tables)
        what = f"recording {number + 1}: {found.count('kernel')} kernels, of which the first begins"
        yield f"{what} {least} of CUPTI's ticks after its launch", least is not None and least >= 0
        yield f"recording {number + 1}: {found.dropped} left out", found.dropped == 0
        yield from ((warning, None) for warning in found.warnings)


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def _least_delay_ns(tables: Any) -> int | None:
    starts: dict[int, int] = {}
    for name in ("driver", "runtime"):
        if name in tables:
            ids, begun = tables[name]["correlation_id"].tolist(), tables[name]["start"].tolist()
            starts |= dict(zip(ids, begun, strict=True))
    kernels = tables.get("kernel", {"correlation_id": np.zeros(0), "start": np.zeros(0)})
    pairs = zip(kernels["correlation_id"].tolist(), kernels["start"].tolist(), strict=True)
    return min(
        (start - starts[number] for number, start in pairs if number in starts), default=None
    )


def launches() -> Iterator[tuple[str, bool | None]]:
    """Whether every kernel has its launch, where several threads launch, and Triton does."""
    import scenes  # noqa: PLC0415

    provider = cupti_provider()
    for scene in (scenes.attention, scenes.training, scenes.compiled):
        for _ in range(3):
            scene()
        for number in range(6):
            found = visit(provider, partial(_thrice, scene))
            tables = found.tables
            calls = [tables[name] for name in ("driver", "runtime") if name in tables]
            ids = np.concatenate([table["correlation_id"] for table in calls])
            kernels = tables["kernel"]
            lost = np.flatnonzero(~np.isin(kernels["correlation_id"], ids))
            what = f"{scene.__name__}, recording {number + 1}: {len(lost)} of"
            yield f"{what} {len(kernels['start'])} kernels have no launch", len(lost) == 0
            first = min(int(table["start"].min()) for table in calls)
            for at in lost[:5].tolist():
                begun = (int(kernels["start"][at]) - first) / 1e3
                number_, name = int(kernels["correlation_id"][at]), int(kernels["name"][at])
                yield (
                    f"  {begun:.1f} µs after the first call: id {number_} of {ids.min()} to "
                    f"{ids.max()}, name {name}",
                    None,
                )
            yield from ((warning, None) for warning in found.warnings)


def _thrice(work: Callable[[], object]) -> None:
    for _ in range(3):
        work()


def graph() -> Iterator[tuple[str, bool | None]]:
    """Whether a graph that was captured in one recording has its kernels in a later one."""
    import scenes  # noqa: PLC0415

    provider = cupti_provider()
    for number, what in enumerate(("captured and replayed", "replayed", "replayed"), 1):
        found = visit(provider, scenes.graphed)
        nodes = found.rows.filter(kind="kernel")["attr.graph_node"].drop_nulls()
        known = found.rows.filter(kind="kernel")["attr.captured_node"].drop_nulls()
        yield f"recording {number}, {what}: {len(nodes)} kernels of a graph", len(nodes) > 0
        yield f"recording {number}: {len(known)} of them are known from the capture", None
        yield from ((warning, None) for warning in found.warnings)


def unfinished() -> Iterator[tuple[str, bool | None]]:
    """Check a kernel that runs on when the recording ends."""
    import torch  # noqa: PLC0415

    provider = cupti_provider()
    visit(provider, lambda: torch.cuda._sleep(1000))  # so that code is loaded
    for cycles in (SLEEP_CYCLES, 20 * SLEEP_CYCLES):
        begun = time.monotonic()
        found = visit(provider, partial(torch.cuda._sleep, cycles), wait=False)
        took = time.monotonic() - begun
        kernels, launches = found.count("kernel"), found.count("launch")
        yield f"{cycles:,} cycles: {kernels} kernels, {launches} launches, {took:.3f} s", None
        yield from ((warning, None) for warning in found.warnings)
        torch.cuda.synchronize()
        after = visit(provider, lambda: torch.ones(4, device="cuda") + 1)
        yield (
            f"the recording after that: {after.count('kernel')} kernels",
            after.count("kernel") > 0,
        )


def ranges() -> Iterator[tuple[str, bool | None]]:
    """Which libraries announce ranges by NVTX, once the variable names libcupti."""
    variable = "NVTX_INJECTION64_PATH"
    if not os.environ.get(variable):
        from xsp_levels.kernel.cupti import library  # noqa: PLC0415

        library.vendor().get_timestamp()
        path = library.used(library.loaded().cupti)
        command = [sys.executable, __file__, "ranges"]
        raise SystemExit(
            subprocess.run(command, env={**os.environ, variable: path}, check=False).returncode
        )
    import scenes  # noqa: PLC0415

    provider = cupti_provider()
    scenes.attention()
    found = visit(provider, scenes.attention)
    calls = found.rows.filter(kind="call")
    markers = len(found.tables.get("marker", {}).get("id", ()))
    yield f"{markers} marks of NVTX, of which {calls.height} ranges became rows", None
    named = calls.select("attr.library", "name").rows() if calls.height else []
    for library_name, name in sorted(set(named)):
        yield f"{library_name}: {name}", None


def loggers() -> Iterator[tuple[str, bool | None]]:
    """Print the log of cuBLAS and cuBLASLt for two products, and the rows made of it."""
    import torch  # noqa: PLC0415

    from xsp.clock import SystemClock  # noqa: PLC0415
    from xsp.level import Kind  # noqa: PLC0415
    from xsp.provider import Request  # noqa: PLC0415
    from xsp_levels.library.cuda.log import messages  # noqa: PLC0415
    from xsp_levels.library.cuda.provider import Cublas  # noqa: PLC0415

    layer = torch.nn.Linear(256, 512).cuda().half()
    x = torch.randn(64, 256, device="cuda").half()
    layer(x), x @ x.T  # so that libraries are loaded
    provider = Cublas()
    provider.start(SystemClock(), Request(frozenset({Kind.CALL})))
    layer(x)
    product = x @ x.T
    torch.cuda.synchronize()
    kept = provider.stop()
    for message in messages(kept.data.content):
        yield f"said: {message.text.strip()}", None
    rows = provider.spans(kept)
    for row in rows.rows(named=True):
        told = {name: row[f"attr.{name}"] for name in ("problem", "algorithm", "formats", "flops")}
        yield f"row: {row['name']} {told}", None
    wanted = {2 * 64 * 512 * 256, 2 * product.numel() * 256}
    yield f"operations: {rows['attr.flops'].to_list()}", wanted <= set(rows["attr.flops"].to_list())


def moments() -> Iterator[tuple[str, bool | None]]:
    """Check whether cuDNN and cuBLAS announce a call before its launches, and after them too."""
    import torch  # noqa: PLC0415

    from xsp.clock import SystemClock  # noqa: PLC0415
    from xsp.level import Kind  # noqa: PLC0415
    from xsp.provider import Request  # noqa: PLC0415
    from xsp_levels.library.cuda.log import messages  # noqa: PLC0415
    from xsp_levels.library.cuda.provider import Cublas, Cudnn  # noqa: PLC0415

    layer = torch.nn.Conv2d(16, 16, 3).cuda()
    images = torch.randn(4, 16, 32, 32, device="cuda")
    head = torch.nn.Linear(16, 16).cuda()
    with torch.inference_mode():
        for _ in range(3):
            head(layer(images).mean((2, 3)))
        providers = (Cublas(), Cudnn(), cupti_provider())
        for provider in providers:
            provider.start(SystemClock(), Request(frozenset(Kind)))
        begun = SystemClock().now()
        head(layer(images).mean((2, 3)))
        torch.cuda.synchronize()
        kept = [provider.stop() for provider in reversed(providers)][::-1]
    said = {(m.time_ns, m.text) for each in kept[:2] for m in messages(each.data.content)}
    launches = providers[2].spans(kept[2]).filter(kind="launch")
    told = [(at, f"says: {' | '.join(text.split(chr(0)))[:1500]}") for at, text in said]
    told += [(row["start_ns"], f"launch: {row['name']}") for row in launches.rows(named=True)]
    told += [(row["end_ns"], f"end of {row['name']}") for row in launches.rows(named=True)]
    for at, what in sorted(told):
        yield f"{(at - begun) / 1e3:9.1f} µs {what}", None


def detail() -> Iterator[tuple[str, bool | None]]:
    """Whether detail visits, one after the other, come to an end and tell of memory."""
    import scenes  # noqa: PLC0415

    provider = cupti_provider()
    for number in range(2):
        found = visit(provider, scenes.attention, detail=True)
        kernels = found.count("kernel")
        yield f"detail recording {number + 1}: {kernels} kernels", kernels > 0
        yield from ((warning, None) for warning in found.warnings)


CHECKS = (
    Check(
        "together", "kernels, with PyTorch 2.15; before that in processes of their own", together
    ),
    Check("clock", "the wall clock; after torch.profiler 2 to 3 in a nanosecond", clock),
    Check("order", "every kernel begins after its launch, and none is left out", order),
    Check("launches", "every kernel has a launch", launches),
    Check("graph", "as many kernels of the graph in each recording", graph),
    Check("unfinished", "the short kernel; the long one is said to be unfinished", unfinished),
    Check("ranges", "NCCL; of cuBLAS and cuDNN none, since their loggers tell of them", ranges),
    Check("loggers", "a row per product, with sizes, and the algorithm that ran", loggers),
    Check("moments", "a message before the launches of a call", moments),
    Check("detail", "no hang, and as many kernels each time", detail),
)


def run(check: Check) -> bool:
    """Carry a check out in this process; return whether nothing was seen that must not be."""
    print(f"expected: {check.expected}", flush=True)
    right = True
    for seen, verdict in check.see():
        right &= verdict is not False
        mark = {None: "seen", True: "seen, right", False: "seen, WRONG"}[verdict]
        print(f"{mark}: {seen}", flush=True)
    return right


def run_apart(name: str) -> bool:
    """Carry a check out in a process of its own; return whether it went well."""
    print(f"\n== {name}", flush=True)
    try:
        code = subprocess.run(
            [sys.executable, __file__, name], timeout=LIMIT_S, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        print(f"seen, WRONG: it did not end within {LIMIT_S} s", flush=True)
        return False
    if code not in (0, 1):
        print(f"seen, WRONG: the process ended with {code}", flush=True)
    return code == 0


def main(arguments: list[str] | None = None) -> int:
    """Carry out the checks that are named, or all, and return 1 if one of them went wrong."""
    named = {check.name: check for check in CHECKS}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="say which checks there are, and end")
    parser.add_argument("check", nargs="?", choices=[*named], help="only this, in this process")
    given = parser.parse_args(arguments)
    if given.list:
        for check in CHECKS:
            print(f"{check.name:<11} {check.expected}")
        return 0
    if given.check:
        return 0 if run(named[given.check]) else 1
    results = {name: run_apart(name) for name in named}
    print("\n" + "\n".join(f"{name:<11} {'ok' if ok else 'WRONG'}" for name, ok in results.items()))
    return 0 if all(results.values()) else 1


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    sys.exit(main())
