"""Decodes rocprofv3's JSON into typed records.

Only the fields that are read are declared; all may be missing. Lists of records stay undecoded
until they are asked for.
"""

from __future__ import annotations

import re

import msgspec

# Where a record ends and the next begins, and what closes all lists and objects around records.
_BETWEEN = re.compile(rb'\}\s*,\s*\{\s*"size"\s*:')
_CLOSINGS = (b"}]}}]}", b"}]}]}")
_TAIL = 1 << 24  # bytes at the end of a file that is cut short in which a whole record is sought


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record that is not read, only counted."""


class Handle(msgspec.Struct, frozen=True, gc=False):
    """The number of an agent, a queue, a stream or a counter."""

    handle: int = 0


class Correlation(msgspec.Struct, frozen=True, gc=False):
    """The id that a call shares with the work it launched."""

    internal: int = 0


class Sizes(msgspec.Struct, frozen=True, gc=False):
    """Sizes in x, y and z, in threads."""

    x: int = 1
    y: int = 1
    z: int = 1


class Dispatch(msgspec.Struct, frozen=True, gc=False):
    """A kernel that was dispatched."""

    agent_id: Handle = Handle()
    queue_id: Handle = Handle()
    kernel_id: int = 0
    dispatch_id: int = 0
    group_segment_size: int = 0
    workgroup_size: Sizes = Sizes()
    grid_size: Sizes = Sizes()


class Timed(msgspec.Struct, frozen=True, gc=False):
    """A record with times: a call, a range, or what a device did."""

    kind: int = 0
    operation: int = 0
    thread_id: int = 0
    correlation_id: Correlation = Correlation()
    start_timestamp: int | float | None = None
    end_timestamp: int | float | None = None


class Kernel(Timed, frozen=True, gc=False):
    """A dispatch with its times."""

    dispatch_info: Dispatch = Dispatch()
    stream_id: Handle | None = None


class Copy(Timed, frozen=True, gc=False):
    """A copy between memories."""

    dst_agent_id: Handle = Handle()
    src_agent_id: Handle = Handle()
    bytes: int | None = None
    stream_id: Handle | None = None


class Symbol(msgspec.Struct, frozen=True, gc=False):
    """A kernel of the program; registers are counted per thread."""

    kernel_id: int = 0
    kernel_name: str = ""
    demangled_kernel_name: str = ""
    group_segment_size: int | None = None
    arch_vgpr_count: int | None = None
    accum_vgpr_count: int | None = None


class Agent(msgspec.Struct, frozen=True, gc=False):
    """A processor: a CPU or a GPU."""

    id: Handle = Handle()
    type: int = 0
    name: str = ""
    product_name: str = ""
    gpu_index: int | None = None
    logical_node_type_id: int | None = None


class Operations(msgspec.Struct, frozen=True, gc=False):
    """Names of operations, in the order of their numbers."""

    kind: str = ""
    operations: list[str] = []


class Message(msgspec.Struct, frozen=True, gc=False):
    """Text that was given to roctx, by correlation id."""

    key: int = 0
    value: str = ""


class Strings(msgspec.Struct, frozen=True, gc=False):
    """Names by numbers; `buffer_records` in the order of the numbers of kinds."""

    buffer_records: list[Operations] = []
    marker_api: list[Message] = []


class Counter(msgspec.Struct, frozen=True, gc=False):
    """A hardware counter."""

    id: Handle = Handle()
    name: str = ""


class Value(msgspec.Struct, frozen=True, gc=False):
    """The value of a counter, in one of its instances."""

    counter_id: Handle = Handle()
    value: int | float | None = None


class Counted(msgspec.Struct, frozen=True, gc=False):
    """The counters of a dispatch."""

    dispatch_data: Kernel = Kernel()
    records: list[Value] = []


class Node(msgspec.Struct, frozen=True, gc=False):
    """The machine."""

    hostname: str = ""


class Metadata(msgspec.Struct, frozen=True, gc=False):
    """The machine, the process and the command that were recorded."""

    node: Node = Node()
    pid: int = 0
    command: list[str] = []


class Process(msgspec.Struct, frozen=True, gc=False):
    """One process. Records are undecoded lists, by their sort."""

    metadata: Metadata = Metadata()
    agents: list[Agent] = []
    counters: list[Counter] = []
    strings: Strings = Strings()
    kernel_symbols: list[Symbol] = []
    callback_records: dict[str, msgspec.Raw] = {}
    buffer_records: dict[str, msgspec.Raw] = {}


class File(msgspec.Struct, frozen=True, gc=False, rename={"processes": "rocprofiler-sdk-tool"}):
    """The whole file."""

    processes: list[Process] | Process


def decoded(content: bytes) -> File:
    """Decode the content of a file.

    Raises:
        msgspec.DecodeError: The content is no JSON, or of another form.
    """
    try:
        return msgspec.json.decode(content, type=File)
    except (UnicodeDecodeError, msgspec.DecodeError):  # of no text msgspec 0.23 raises the latter
        text = content.decode(errors="replace").encode()
        if text == content:
            raise
        return msgspec.json.decode(text, type=File)  # a name that is no text damages nothing else


def repaired(content: bytes) -> File | None:
    """Decode the whole records of a file that ends within a list of records; None if none is."""
    begin = max(0, len(content) - _TAIL)
    ends = [found.start() for found in _BETWEEN.finditer(content, begin)]
    for closing in _CLOSINGS if ends else ():
        try:
            return decoded(content[: ends[-1]] + closing)
        except msgspec.DecodeError:
            continue
    return None


def length(raw: msgspec.Raw) -> int:
    """Return how many records a list has; 0 of what is no list."""
    try:
        return len(msgspec.json.decode(raw, type=list[Record]))
    except msgspec.DecodeError:
        return 0
