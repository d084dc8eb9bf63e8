"""Makes rows of the kernels and copies that GPUs ran.

Sizes of dispatches are in threads, and become blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
import polars as pl

from xsp.level import Kind
from xsp.provider import SpanRows, concat_rows, no_rows, span_rows
from xsp.reading.importers.rocm import copy_direction
from xsp.reading.importers.rocprofv3.message import (
    Agent,
    Copy,
    Counted,
    Dispatch,
    Handle,
    Kernel,
    Symbol,
)
from xsp.reading.importers.rocprofv3.process import Records, times
from xsp.text import full_name, short_name

_GPU = 2  # a type of agent
_COUNTERS = "counter_collection"


def gpus(agents: Sequence[Agent]) -> dict[int, tuple[int, str]]:
    """Return number and name of each GPU, by the handle of its agent."""
    return {
        each.id.handle: (_number(each, at), each.product_name or each.name)
        for at, each in enumerate(each for each in agents if each.type == _GPU)
    }


def device_rows(records: Records) -> SpanRows:
    """Return rows of the kernels and copies that GPUs ran."""
    numbers = {handle: number for handle, (number, _) in gpus(records.process.agents).items()}
    return concat_rows([_kernels(records, numbers), _copies(records, numbers)])


def _number(agent: Agent, at: int) -> int:
    """Return HIP's number of a GPU, or where the file has none, its position."""
    known = (agent.gpu_index, agent.logical_node_type_id, at)
    return next(number for number in known if number is not None and number >= 0)


def _kernels(records: Records, numbers: Mapping[int, int]) -> SpanRows:
    kernels = records.sound("kernel_dispatch", Kernel)
    if not kernels:
        return no_rows()
    infos = [each.dispatch_info for each in kernels]
    of = [each.kernel_id for each in infos]
    known = {each.kernel_id: each for each in records.process.kernel_symbols}
    symbols = {number: known.get(number, Symbol()) for number in set(of)}
    names = {number: _name(symbol) for number, symbol in symbols.items()}
    full = [names[number] for number in of]
    grid, block = _sizes(infos)
    static = pl.Series([symbols[number].group_segment_size for number in of], dtype=pl.Int64)
    return span_rows(
        {
            "kind": Kind.KERNEL.value,
            "name": [short_name(name) for name in full],
            **times(kernels),
            "device": _devices((each.agent_id for each in infos), numbers),
            "stream": [_stream(each, each.dispatch_info.queue_id) for each in kernels],
            "correlation_id": [each.correlation_id.internal for each in kernels],
            "attr.full_name": full,
            "attr.grid": grid,
            "attr.block": block,
            "attr.registers": pl.Series([_registers(symbols[n]) for n in of], dtype=pl.Int64),
            "attr.static_shared_bytes": static,
            "attr.dynamic_shared_bytes": pl.Series([i.group_segment_size for i in infos]) - static,
            **_counters(records, [each.dispatch_id for each in infos]),
        }
    )


def _counters(records: Records, dispatches: Sequence[int]) -> dict[str, pl.Series]:
    """Return the hardware counters of each dispatch, each summed over its instances."""
    records.asked.add(_COUNTERS)
    raw = records.process.callback_records.get(_COUNTERS)
    if raw is None:
        return {}
    names = {each.id.handle: each.name for each in records.process.counters}
    sums: dict[str, dict[int, float]] = {}
    for each in msgspec.json.decode(raw, type=list[Counted]):
        dispatch = each.dispatch_data.dispatch_info.dispatch_id
        for found in each.records:
            name = names.get(found.counter_id.handle)
            if name is None or found.value is None:
                records.left["values of counters without a name"] += 1
                continue
            values = sums.setdefault(name, {})
            values[dispatch] = values.get(dispatch, 0.0) + found.value
    return {
        f"attr.{name}": pl.Series([values.get(each) for each in dispatches], dtype=pl.Float64)
        for name, values in sums.items()
    }


def _copies(records: Records, numbers: Mapping[int, int]) -> SpanRows:
    copies = records.sound("memory_copy", Copy)
    if not copies:
        return no_rows()
    ways = [copy_direction(name) for name in records.operations(copies)]
    ends = [
        each.dst_agent_id if each.dst_agent_id.handle in numbers else each.src_agent_id
        for each in copies
    ]
    return span_rows(
        {
            "kind": Kind.MEMCPY.value,
            "name": [f"memcpy {way}" for way in ways],
            **times(copies),
            "device": _devices(ends, numbers),
            "stream": pl.Series([_stream(each, None) for each in copies], dtype=pl.Int64),
            "correlation_id": [each.correlation_id.internal for each in copies],
            "attr.transfer_bytes": pl.Series([each.bytes for each in copies], dtype=pl.Int64),
            "attr.direction": ways,
        }
    )


def _devices(agents: Iterable[Handle], numbers: Mapping[int, int]) -> pl.Series:
    """Return the number of each GPU; of an agent that the file does not list, 0."""
    return pl.Series([numbers.get(each.handle, 0) for each in agents], dtype=pl.Int32)


def _name(symbol: Symbol) -> str:
    return full_name(symbol.demangled_kernel_name or symbol.kernel_name or "kernel")


def _registers(symbol: Symbol) -> int | None:
    """Return the vector registers of a thread, accumulation registers counted in."""
    vectors, sums = symbol.arch_vgpr_count, symbol.accum_vgpr_count
    return None if vectors is None else vectors + (sums or 0)


def _stream(record: Kernel | Copy, queue: Handle | None) -> int | None:
    """Return HIP's number of the stream, or where the file has none that of the queue."""
    handle = record.stream_id or queue
    return None if handle is None else handle.handle


def _sizes(infos: Sequence[Dispatch]) -> tuple[pl.Series, pl.Series]:
    """Return the sizes of the grids, in blocks, and of the blocks, in threads."""
    grids = np.array([(each.grid_size.x, each.grid_size.y, each.grid_size.z) for each in infos])
    blocks = np.array(
        [(each.workgroup_size.x, each.workgroup_size.y, each.workgroup_size.z) for each in infos]
    )
    counts = -(-grids // np.maximum(blocks, 1))
    grid, block = (pl.Series(each).cast(pl.List(pl.Int64)) for each in (counts, blocks))
    return grid, block
