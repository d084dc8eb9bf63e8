"""Reads the render stages of GPUs: kernels, copies, sets, and what else a queue ran."""

from __future__ import annotations

import re
from functools import cached_property

import msgspec
import polars as pl

from xsp.protobuf import BYTES, Ints
from xsp.reading.importers.perfetto.argument import ARGUMENT, EXTRA, Arguments
from xsp.reading.importers.perfetto.packet import STAGE, Packets, column, in_order

_NAMES, _CONTEXTS, _SPECIFICATIONS, _KERNELS = 2, 23, 24, 1000  # fields of interned data
_STREAM = re.compile(r"stream\D*(\d{1,18})", re.IGNORECASE)
_COMPUTE = 2  # category of stages that compute


class Stages:
    """The render stages of a file.

    Attributes:
        packet: Packet of each stage.
        count: How many there are.
        number: The number by which events name the stage.
        start_ns: Start of each stage.
        end_ns: End of each stage.
        gpu: Number of the GPU.
    """

    def __init__(self, packets: Packets) -> None:
        self._packets = packets
        messages = in_order(packets.fields.of(STAGE, BYTES))
        self.packet = messages.message
        self._fields = packets.scanned(messages.numbered(), "render stages")
        self.count = len(self.packet)
        self.number = self._column(1)
        self.start_ns = packets.times[self.packet]
        self.end_ns = self.start_ns + self._column(2)
        self.gpu = self._column(11)
        self._launch = in_order(self._fields.of(21, BYTES))
        self._launched = packets.scanned(self._launch.numbered(), "launches")

    def _column(self, number: int) -> Ints:
        return column(self._fields, number, self.count)

    def _named(self, kind: int, number: int, take: str = "text") -> pl.Series:
        generation = self._packets.generation[self.packet]
        found, missing = self._packets.named(kind, generation, self._column(number), take)
        if missing and take == "text" and kind != _KERNELS:
            self._packets.left["names of stages that the file does not hold"] += missing
        return found

    @cached_property
    def sort(self) -> pl.Series:
        """What each stage is: `kernel`, `gpu_memcpy`, `gpu_memset`, or its name.

        A range of the program that is drawn on the queue is `gpu_user_annotation`.
        """
        category = self._named(_SPECIFICATIONS, 14, "number").cast(pl.Int64, strict=False)
        stage = self._named(_SPECIFICATIONS, 14).fill_null("GPU stage")
        return pl.select(
            pl.when(category == _COMPUTE)
            .then(pl.lit("kernel"))
            .when(stage.str.contains("(?i)memcpy|copy"))
            .then(pl.lit("gpu_memcpy"))
            .when(stage.str.contains("(?i)memset"))
            .then(pl.lit("gpu_memset"))
            .when(stage.str.contains("(?i)annotation"))
            .then(pl.lit("gpu_user_annotation"))
            .when(stage.str.contains("(?i)kernel"))
            .then(pl.lit("kernel"))
            .otherwise(stage)
        ).to_series()

    @cached_property
    def kernel(self) -> pl.Series:
        """Name of the kernel of each stage with arguments and types, null if it is not told."""
        return self._named(_KERNELS, 19, "other").fill_null(self._named(_KERNELS, 19))

    @cached_property
    def name(self) -> pl.Series:
        """Name of each stage: that of the kernel, of the event, or of the kind of stage."""
        return self.kernel.fill_null(self.label)

    @cached_property
    def label(self) -> pl.Series:
        """Name of each stage as it is drawn."""
        own = pl.Series(self._packets.texts(self._fields, 17, self.count), dtype=pl.String)
        stage = self._named(_SPECIFICATIONS, 14).fill_null("GPU stage")
        return own.fill_null(self._named(_NAMES, 20)).fill_null(stage)

    @cached_property
    def stream(self) -> pl.Series:
        """Number of the stream, which the name of the queue tells; else that of the queue."""
        queue = self._named(_SPECIFICATIONS, 13).fill_null("")
        told = {name: _STREAM.search(name) for name in queue.unique().to_list()}
        known = {name: int(match[1]) for name, match in told.items() if match}
        stream = queue.replace_strict(known, default=None, return_dtype=pl.Int64)
        return stream.fill_null(pl.Series(self._column(13)))

    def size(self, number: int) -> list[bytes | None]:
        """Return the size of the grid (1) or block (2) of each kernel, as JSON."""
        result: list[bytes | None] = [None] * self.count
        own = self._launched.of(number, BYTES)
        known: dict[bytes, bytes] = {}
        stages = self._launch.message[own.message].tolist()
        places = zip(stages, own.value.tolist(), own.size.tolist(), strict=True)
        for stage, begin, size in places:
            raw = self._packets.content[begin : begin + size]
            if raw not in known:
                axes = dict(self._packets.message(raw, "sizes"))
                sizes = [axes.get(axis, 1) for axis in (1, 2, 3)]
                known[raw] = msgspec.json.encode([s if isinstance(s, int) else 1 for s in sizes])
            result[stage] = known[raw]
        return result

    def arguments(self, wanted: set[str]) -> Arguments:
        """Return the typed arguments of the launches."""
        own = self._launched.of(3, BYTES)
        placed = type(own)(
            self._launch.message[own.message], own.number, own.wire, own.value, own.size
        )
        return Arguments(self._packets, placed, self.packet, self.count, ARGUMENT, wanted)

    def extra(self, wanted: set[str]) -> Arguments:
        """Read the further details of each stage, as texts."""
        found = self._fields.of(6, BYTES)
        return Arguments(self._packets, found, self.packet, self.count, EXTRA, wanted)
