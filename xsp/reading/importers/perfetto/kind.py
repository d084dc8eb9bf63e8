"""Tells what slices and stages are, and adds them to the tables of torch.profiler's JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import polars as pl

from xsp.protobuf import BYTES, Ints
from xsp.reading.importers.kineto import COLLECTIVE, INTEGERS, Args, Sort, Tables, sort_of
from xsp.reading.importers.perfetto.argument import ANNOTATION, Arguments
from xsp.reading.importers.perfetto.slice import Slices
from xsp.reading.importers.perfetto.stage import Stages
from xsp.reading.importers.rocm import copy_direction, range_columns

# Categories of rocprofv3 and wprof, and what torch.profiler calls the like.
_LIKE = {
    "hip_api": "cuda_runtime", "hsa_api": "cuda_driver", "kernel_dispatch": "kernel",
    "memory_copy": "gpu_memcpy", "rccl_api": "cpu_op", "cuda_kernel": "kernel",
    "cuda_memcpy": "gpu_memcpy", "cuda_memset": "gpu_memset", "cuda_api": "cuda_runtime",
    "cuda_overhead": "overhead", "pytorch": "cpu_op",
}  # fmt: skip
_MARKERS = "marker_api"
_TOOLS = {"kernel_dispatch": "rocprofv3", "hip_api": "rocprofv3", "hsa_api": "rocprofv3",
          "cuda_api": "wprof", "cuda_kernel": "wprof", "oncpu": "wprof"}  # fmt: skip
_KEYS: Mapping[str, str] = {each.name: each.encode_name for each in msgspec.structs.fields(Args)}
# What else a field is called: in render stages, by rocprofv3, and by wprof.
_ALSO: Mapping[str, tuple[str, ...]] = {
    "correlation": ("corr_id",),
    "device": ("device id", "device_id"),
    "stream": ("stream id", "stream_ID", "stream_id"),
    "context": ("context id", "context_id"),
    "bytes": ("copy_bytes", "byte_cnt"),
    "registers": ("registers_per_thread", "VGPR_Count"),
    "occupancy": ("sm__maximum_warps_per_active_cycle_pct",),
}
_AXES = {each: tuple(f"{each}_{axis}" for axis in "xyz") for each in ("grid", "block")}
_SHARED = ("shared_mem_static", "shared_mem_dynamic")
_HINTS = ("tid", "agent", "dst_agent", "cbid", "cuda_sync_kind", "Ev Idx")
_WANTED = {
    *_KEYS.values(), *(name for also in _ALSO.values() for name in also), *_SHARED, *_HINTS,
    *(name for axes in _AXES.values() for name in axes),
}  # fmt: skip
_NUMERIC = sorted({name for names in INTEGERS.values() for name in names})
_OVERHEADS = (
    r"^(Activity Buffer Request|Buffer Flush|Instrumentation|Resource|Driver Compiler|"
    r"Runtime Triggered Module Loading|Lazy Function Loading|Command Buffer Full)$"
)
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "cuda_sync")
_TIED = (*_ON_DEVICE, "cuda_runtime", "cuda_driver")
_BY_FLOW, _BY_STAGE = 1 << 42, 1 << 43  # from where on correlation ids are given here
_RANGE = "user_annotation"
_NUMBER = re.compile(r"(\d{1,9})$")


def add_slices(slices: Slices, stages: Stages, tables: Tables) -> str:
    """Add slices, instants and render stages to the tables of torch.profiler's JSON.

    What is none of the sorts that these have is counted there.

    Returns:
        The tool that wrote the file, empty if that cannot be told.
    """
    args = Arguments(
        slices.packets, slices.fields.of(4, BYTES), slices.packet, slices.count, ANNOTATION, _WANTED
    )
    begin, _, end = slices.paired
    frame = _placed(slices, begin).with_columns(
        category=slices.category.gather(begin).str.to_lowercase(),
        label=slices.name.gather(begin).fill_null(""),
        start_ns=slices.time_ns[begin],
        end_ns=end,
    )
    said = frame["category"].drop_nulls().unique().to_list()
    tool = next((_TOOLS[each] for each in sorted(said) if each in _TOOLS), "")
    frame = frame.with_columns(_numbers(args, _NUMERIC).select(pl.all().gather(begin)))
    frame = frame.with_columns(sort=_sorts(frame, args, begin))
    frame = _adapted(frame, args, begin)
    frame, of_stage = _tied(frame, slices, begin)
    _add_instants(slices, args, tables)
    for name in ("dims", "types", "grid", "block"):
        if _KEYS[name] in args:
            texts = args.json(_KEYS[name])
            numbers = tables.texts.numbers([texts[event] for event in begin.tolist()])
            frame = frame.with_columns(numbers.alias(name))
    frame = _with_axes(frame, args, begin, tables)
    frame = frame.with_columns(_collectives(args, begin, tables).alias("collective"))
    _add(frame, tables)
    if stages.count:
        _add_stages(stages, of_stage, tables)
        tool = tool or ("torch.profiler" if "cpu_op" in said else "")
    return tool


def _placed(slices: Slices, begin: Ints) -> pl.DataFrame:
    """Return process and thread of each slice."""
    track = slices.track[begin]
    known = np.unique(track).tolist()
    places = [slices.place(each) for each in known]
    told = pl.DataFrame(
        {"track": known, "pid": [each[0] for each in places], "tid": [each[1] for each in places]},
        schema=dict.fromkeys(("track", "pid", "tid"), pl.Int64),
    )
    found = pl.DataFrame({"track": track}).join(told, on="track", how="left", maintain_order="left")
    return found.drop("track")


def _numbers(args: Arguments, wanted: Sequence[str]) -> pl.DataFrame:
    """Return the numbers of events by field; a field that no event has is null."""
    columns = []
    for field in wanted:
        names = [name for name in (_KEYS[field], *_ALSO.get(field, ())) if name in args]
        given = [args.integers(name) for name in names] or [args.integers(_KEYS[field])]
        columns.append(pl.select(pl.coalesce(given).alias(field)).to_series())
    return pl.DataFrame(columns)


def _sorts(frame: pl.DataFrame, args: Arguments, begin: Ints) -> pl.Series:
    """Return the category of each slice as torch.profiler has it.

    Writers without categories are told by their arguments. Where nothing at all is known, a slice
    is a range that somebody marked.
    """
    name = pl.col("label")
    has = {key: pl.Series(args.has(key)[begin]) for key in
           ("grid", "cbid", "cuda_sync_kind", "Python id", "Ev Idx", "External id")}  # fmt: skip
    guessed = (
        pl.when(has["grid"]).then(pl.lit("kernel"))
        .when(name.str.starts_with("Memcpy ")).then(pl.lit("gpu_memcpy"))
        .when(name.str.starts_with("Memset ")).then(pl.lit("gpu_memset"))
        .when(has["cuda_sync_kind"]).then(pl.lit("cuda_sync"))
        .when(has["cbid"] & name.str.contains("^cu[A-Z]")).then(pl.lit("cuda_driver"))
        .when(has["cbid"]).then(pl.lit("cuda_runtime"))
        .when(has["Python id"] | name.str.starts_with("nn.M")).then(pl.lit("python_function"))
        .when(name.str.contains(_OVERHEADS)).then(pl.lit("overhead"))
        .when((has["Ev Idx"] | has["External id"]) & name.str.contains("::"))
        .then(pl.lit("cpu_op"))
    )  # fmt: skip
    category = pl.col("category").replace("", None).replace(_LIKE)
    found = frame.select(pl.coalesce(category, guessed)).to_series()
    known = found.unique().drop_nulls().to_list()
    strangers = not any(sort_of(each) for each in known) and _MARKERS not in known
    if strangers:
        return pl.Series([_RANGE]).new_from_index(0, len(found))
    return found.fill_null(_RANGE)


def _adapted(frame: pl.DataFrame, args: Arguments, begin: Ints) -> pl.DataFrame:
    """Return slices of rocprofv3 with the names, threads and devices that others have."""
    if (frame["sort"] == _MARKERS).any():
        of_marker = frame["sort"] == _MARKERS
        told = range_columns(frame["label"].to_list())
        is_op = told["kind"] == "op"
        sort = pl.select(pl.when(is_op).then(pl.lit("cpu_op")).otherwise(pl.lit(_RANGE)))
        frame = frame.with_columns(
            sort=pl.when(of_marker).then(sort.to_series()).otherwise("sort"),
            label=pl.when(of_marker).then(told["name"]).otherwise("label"),
            sequence=pl.when(of_marker).then(told["sequence"]).otherwise("sequence"),
        )
    copies = pl.col("label").str.starts_with("MEMORY_COPY_")
    ways = {name: f"Memcpy {copy_direction(name)}" for name in
            frame.filter(copies)["label"].unique().to_list()}  # fmt: skip
    frame = frame.with_columns(pl.col("label").replace(ways))
    if "tid" in args:
        own = args.integers("tid").gather(begin)
        on_host = ~pl.col("sort").is_in(_ON_DEVICE)
        frame = frame.with_columns(
            tid=pl.when(on_host).then(pl.coalesce(own, "tid")).otherwise("tid")
        )
    for name in ("agent", "dst_agent"):
        if name in args:
            texts = pl.Series(args.values(name), dtype=pl.String, strict=False).gather(begin)
            found = {text: _NUMBER.search(text) for text in texts.unique().drop_nulls().to_list()}
            known = {text: int(match[1]) for text, match in found.items() if match}
            number = texts.replace_strict(known, default=None, return_dtype=pl.Int64)
            frame = frame.with_columns(pl.coalesce("device", number).alias("device"))
    return frame


def _tied(frame: pl.DataFrame, slices: Slices, begin: Ints) -> tuple[pl.DataFrame, dict[int, int]]:
    """Return slices with correlation ids, and the id of each render stage by its number.

    A writer that numbers no calls ties them to what they started by flows, or by the numbers of
    render stages.
    """
    flow = pl.Series(slices.flow[begin])
    number = _BY_FLOW + flow.rank("dense").cast(pl.Int64)
    fits = pl.col("correlation").is_null() & pl.col("sort").is_in(_TIED) & (flow != 0)
    frame = frame.with_columns(correlation=pl.when(fits).then(number).otherwise("correlation"))
    events, started = slices.started
    place = np.full(slices.count, -1)
    place[begin] = np.arange(len(begin))
    rows = place[events]
    started, rows = started[rows >= 0], rows[rows >= 0]
    if not len(rows):
        return frame, {}
    own = frame["correlation"].to_list()
    for row in np.unique(rows).tolist():
        if own[row] is None:
            own[row] = _BY_STAGE + row
    frame = frame.with_columns(pl.Series("correlation", own, dtype=pl.Int64))
    return frame, {
        stage: own[row] for stage, row in zip(started.tolist(), rows.tolist(), strict=True)
    }


def _with_axes(frame: pl.DataFrame, args: Arguments, begin: Ints, tables: Tables) -> pl.DataFrame:
    """Return slices with the grids and blocks that are told axis by axis."""
    for field, axes in _AXES.items():
        if all(axis in args for axis in axes):
            sizes = zip(
                *(args.integers(axis).gather(begin).to_list() for axis in axes), strict=True
            )
            texts = [None if None in size else msgspec.json.encode(size) for size in sizes]
            frame = frame.with_columns(tables.texts.numbers(texts).alias(field))
    return frame


def _collectives(args: Arguments, begin: Ints, tables: Tables) -> pl.Series:
    """Read the arguments of collective operations, as numbers of texts."""
    fields = [field for field, _ in COLLECTIVE.values()]
    if _KEYS["collective"] not in args:
        return tables.texts.numbers([None] * len(begin))
    values = [args.values(_KEYS[field]) for field in fields]
    said = [tuple(None if each is None else str(each) for each in facts)
            for facts in zip(*values, strict=True)]  # fmt: skip
    return tables.texts.numbers(
        [said[event] if said[event][0] is not None else None for event in begin.tolist()]
    )


def _add_instants(slices: Slices, args: Arguments, tables: Tables) -> None:
    """Add allocations to the tables, and count other instants."""
    rows = slices.instants
    names = slices.name.gather(rows).fill_null("")
    is_memory = names == "[memory]"
    memory = rows[is_memory.to_numpy()]
    if len(memory):
        frame = _placed(slices, memory).with_columns(
            _numbers(args, INTEGERS[Sort.MEMORY]).select(pl.all().gather(memory)),
            name=tables.texts.numbers(["[memory]"] * len(memory)),
            start_ns=slices.time_ns[memory],
        )
        tables.add_columns(Sort.MEMORY, frame)
    others = len(rows) - len(memory)
    if others:
        tables.strange["instant events"] += others


def _add(frame: pl.DataFrame, tables: Tables) -> None:
    frame = frame.with_columns(name=tables.texts.numbers(frame["label"].to_list()))
    for (category,), part in frame.group_by("sort", maintain_order=True):
        sort = sort_of(str(category))
        if sort is None:
            if category != "trace":
                tables.strange[str(category)] += part.height
        elif sort is Sort.PYTHON:
            tables.add_functions(part, part["label"])
        else:
            tables.add_columns(sort, part)


def _add_stages(stages: Stages, of_stage: Mapping[int, int], tables: Tables) -> None:
    """Add render stages to the tables of kernels, copies and sets."""
    extra, launch = stages.extra(_WANTED), stages.arguments(_WANTED)
    told, given = _numbers(extra, _NUMERIC), _numbers(launch, _NUMERIC)
    numbers = pl.DataFrame(
        [
            pl.select(pl.coalesce(told[name], given[name]).alias(name)).to_series()
            for name in _NUMERIC
        ]
    )
    tied = pl.Series(stages.number).replace_strict(of_stage, default=None, return_dtype=pl.Int64)
    shared = [launch.integers(name) for name in _SHARED]
    total = shared[0].fill_null(0) + shared[1].fill_null(0)
    known = shared[0].is_not_null() | shared[1].is_not_null()
    frame = numbers.with_columns(
        sort=stages.sort,
        label=stages.name,
        start_ns=stages.start_ns,
        end_ns=stages.end_ns,
        pid=pl.Series(stages.gpu),
        tid=stages.stream,
        device=pl.Series(stages.gpu),
        stream=pl.coalesce(pl.col("stream"), stages.stream),
        correlation=pl.coalesce(pl.col("correlation").replace(0, None), tied),
        shared_memory=pl.when(known).then(total),
        grid=tables.texts.numbers(stages.size(1)),
        block=tables.texts.numbers(stages.size(2)),
        collective=_collectives(extra, np.arange(stages.count), tables),
    )
    _add(frame, tables)
