"""How quickly are CUPTI's records read? From the bytes in its buffers to rows, and to a tree.

Run it as `python benchmarks/records.py`; it needs cupti-python, which knows the records'
structures, and no GPU: launches and kernels are generated, in the operators of layers that
made them. Beside it the way of cupti-python's own callbacks: an object per record, and its
fields read one by one.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from correlation import peak_mib
from table import print_header, print_row

from xsp.level import Kind
from xsp.provider.row import SpanRows, concat_rows, span_rows
from xsp.reading.correlation.parent import correlate
from xsp_levels.kernel.cupti.record import CuptiRecords, rows
from xsp_levels.kernel.cupti.table import FORMS, Table, gather, join, layout, walk

SIZES = (10_000, 100_000, 1_000_000)
BUFFER = 8 << 20
KERNELS_OF_AN_OPERATOR = 2
OPERATORS_OF_A_LAYER = 5
LAUNCH_NS, KERNEL_NS = 5_000, 4_000
PEER_RECORDS = 20_000
THREAD = 7
NAMES = [ctypes.create_string_buffer(f"void gemm_{n}<float>(float*)".encode()) for n in range(40)]
TEXTS = {ctypes.addressof(name): name.value.decode() for name in NAMES}
KINDS = frozenset({Kind.LAUNCH, Kind.KERNEL})
COLUMNS = (("records", 9), ("read s", 7), ("rows s", 7), ("tree s", 7), ("MiB", 6), ("peer s", 7))
HEADINGS, WIDTHS = zip(*COLUMNS, strict=True)
LEGEND = """
read    from the bytes of the buffers to columns
rows    from those to the rows that the provider returns
tree    correlation of these rows with the layers and operators around the launches
MiB     highest memory above the buffers themselves, for all three
peer    cupti-python's way: an object per record, six of its fields read (extrapolated
        from 20,000)"""

Bytes = npt.NDArray[np.uint8]


def buffers(cupti: Any, count: int) -> list[Bytes]:
    """Return so many records, half of them launches and half kernels, as CUPTI leaves them."""
    how = layout(cupti)
    kinds = {form.table: kind for kind, form in how.forms.items()}
    api, kernel = how.dtypes[kinds["runtime"]], how.dtypes[kinds["kernel"]]
    number = np.arange(count // 2)
    pairs = np.zeros(count // 2, [("launch", api), ("kernel", kernel)])
    start = 1 + number * LAUNCH_NS
    own = {"kind": kinds["runtime"], "cbid": 211, "thread_id": THREAD, "start": start}
    for name, value in (own | {"end": start + 3_000}).items():
        pairs["launch"][name] = value
    own = {"kind": kinds["kernel"], "start": start + 4_000, "end": start + 4_000 + KERNEL_NS}
    names = np.array(list(TEXTS))[number % len(TEXTS)]
    own |= {"stream_id": 7, "name": names, "block_x": 128, "grid_x": 8}
    for name, value in own.items():
        pairs["kernel"][name] = value
    for part in ("launch", "kernel"):
        pairs[part]["correlation_id"] = 1 + number
    each = BUFFER // pairs.itemsize
    parts = (pairs[at : at + each] for at in range(0, len(pairs), each))
    return [np.ascontiguousarray(part).view(np.uint8) for part in parts]


def read(cupti: Any, filled: list[Bytes]) -> dict[str, Table]:
    """Return the tables of columns in some buffers."""
    how = layout(cupti)
    parts: dict[str, list[Table]] = {form.table: [] for form in FORMS}
    for content in filled:
        memory = memoryview(content)
        found, _ = walk(memory, lambda kind, at: how.dtypes[kind].itemsize)
        for kind, places in found.items():
            form = how.forms[kind]
            parts[form.table].append(gather(memory, places, how.dtypes[kind], form))
    return {name: join(tables) for name, tables in parts.items() if tables}


def records(tables: dict[str, Table]) -> CuptiRecords:
    """Return the tables as a provider keeps them."""
    calls = {("runtime", 211): "cudaLaunchKernel_v7000"}
    return CuptiRecords(KINDS, tables, TEXTS, calls, {THREAD: THREAD})


def around(count: int) -> tuple[SpanRows, SpanRows]:
    """Return the step, and the layers and operators that launched so many kernels."""
    frames = []
    for kind, many in (
        ("op", KERNELS_OF_AN_OPERATOR),
        ("layer", KERNELS_OF_AN_OPERATOR * OPERATORS_OF_A_LAYER),
    ):
        start = np.arange(0, count, many) * LAUNCH_NS
        end = start + many * LAUNCH_NS - (1 if kind == "op" else 0)
        columns = {"kind": kind, "name": kind, "start_ns": start, "end_ns": end}
        frames.append(span_rows({**columns, "thread": THREAD}))
    root = {"kind": ["region"], "name": "predict", "start_ns": [0]}
    end = [count * LAUNCH_NS + 10 * KERNEL_NS]
    return span_rows({**root, "end_ns": end, "thread": THREAD}), concat_rows(frames)


def one_by_one(cupti: Any, filled: list[Bytes], count: int) -> float:
    """Return the seconds that reading so many records as objects takes."""
    how = layout(cupti)
    names = [name for name in dir(cupti) if name.startswith("ActivityKernel")]
    kernel_type = getattr(
        cupti, max(names, key=lambda name: int(name.removeprefix("ActivityKernel") or 0))
    )
    types = {form.table: kind for kind, form in how.forms.items()}
    of_kind = {types["runtime"]: cupti.ActivityAPI, types["kernel"]: kernel_type}
    content = memoryview(filled[0])
    found, _ = walk(content, lambda kind, at: how.dtypes[kind].itemsize)
    places = sorted((at, kind) for kind, all_of in found.items() for at in all_of)
    base = filled[0].ctypes.data
    done = places[: min(PEER_RECORDS, len(places))]
    kept = []
    begin = time.perf_counter()
    for at, kind in done:
        record = of_kind[kind].from_ptr(base + at)
        more = (
            (record.name, record.stream_id)
            if kind == types["kernel"]
            else (record.cbid, record.thread_id)
        )
        kept.append((record.kind, record.start, record.end, record.correlation_id, *more))
    return (time.perf_counter() - begin) * count / len(done)


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """Call a function three times; return its result and the least seconds."""
    seconds, result = [], None
    for _ in range(3):
        del result  # two at a time would be twice the memory
        begin = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - begin)
    return result, min(seconds)


def main() -> None:
    """Print the table."""
    try:
        from cupti import cupti  # noqa: PLC0415
    except ImportError as error:
        raise SystemExit("this needs cupti-python: pip install --no-deps cupti-python") from error
    print_header("CUPTI's records, from the bytes in its buffers to a tree")
    print_row(HEADINGS, WIDTHS)
    for size in SIZES:
        filled = buffers(cupti, size)
        before = peak_mib()
        tables, reading = timed(lambda: read(cupti, filled))  # noqa: B023
        made, making = timed(lambda: rows(records(tables)))  # noqa: B023
        root, host = around(size // 2)
        everything = concat_rows([host, made])
        found, building = timed(lambda: correlate(root, everything))  # noqa: B023
        assert not found.orphans + found.unlaunched + found.outside
        seconds = [f"{each:.3f}" for each in (reading, making, building)]
        peer = f"{one_by_one(cupti, filled, size):.2f}"
        print_row([f"{size:,}", *seconds, f"{peak_mib() - before:.0f}", peer], WIDTHS)
    print(LEGEND)


if __name__ == "__main__":
    main()
