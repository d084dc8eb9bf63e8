"""Decodes the events in a piece of JSON, with those fields alone that the importer reads.

Numbers that have to be exact, and lists that are the same in thousands of events, stay text
(`Raw`) until `table` reads them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Raw, Struct

_NOTHING = Raw()


class Args(
    Struct,
    gc=False,
    rename={
        "external_id": "External id",
        "sequence": "Sequence number",
        "forward_thread": "Fwd thread id",
        "dims": "Input Dims",
        "types": "Input type",
        "python_id": "Python id",
        "registers": "registers per thread",
        "shared_memory": "shared memory",
        "occupancy": "est. achieved occupancy %",
        "graph": "graph id",
        "graph_node": "graph node id",
        "memory_bytes": "Bytes",
        "address": "Addr",
        "device_type": "Device Type",
        "device_id": "Device Id",
        "collective": "Collective name",
        "in_elements": "In msg nelems",
        "out_elements": "Out msg nelems",
        "element_type": "dtype",
        "group_size": "Group size",
        "group": "Process Group Name",
        "group_ranks": "Process Group Ranks",
        "collective_sequence": "Seq",
        "recorded_by": "wait_on_cuda_event_record_corr_id",
    },
):
    """Arguments of an event, of whatever category; None where there are none."""

    external_id: Any = None
    sequence: Any = None
    forward_thread: Any = None
    dims: Raw = _NOTHING
    types: Raw = _NOTHING
    python_id: Any = None
    correlation: Any = None
    device: Any = None
    stream: Any = None
    context: Any = None
    registers: Any = None
    shared_memory: Any = None
    occupancy: Any = None
    graph: Any = None
    graph_node: Any = None
    grid: Raw = _NOTHING
    block: Raw = _NOTHING
    bytes: Any = None
    memory_bytes: Any = None
    address: Any = None
    rank: Any = None
    device_type: Any = None
    device_id: Any = None
    collective: Any = None
    in_elements: Any = None
    out_elements: Any = None
    element_type: Any = None
    group_size: Any = None
    group: Any = None
    group_ranks: Any = None
    collective_sequence: Any = None
    recorded_by: Any = None


class Event(Struct, gc=False):
    """One event of the Chrome trace format; times are text, in µs."""

    ph: str = ""
    cat: str | None = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: Raw = _NOTHING
    dur: Raw = _NOTHING
    id: Any = None
    args: Args | None = None


_EVENTS = msgspec.json.Decoder(list[Event])
_EVENT = msgspec.json.Decoder(Event)
# Numbers that C++ prints and JSON does not know, between the colon after a key and what follows.
_NOT_FINITE = re.compile(rb'("\s*:\s*)[-+]?(?:nan|inf|infinity)(?=\s*[,}])', re.IGNORECASE)
_BETWEEN = re.compile(rb"(?<=\})\s*,\s*(?=\{)")  # two events, or two objects in an event
_END = re.compile(rb"\}\s*\]")
_SURELY_END = re.compile(rb"\}\s*\](?=\s*(,\s*\"|\}\s*$|$))")
# In text: a backslash as Windows has it in paths, and half a character of UTF-16.
_BACKSLASH = re.compile(r'(\\["\\/bfnrtu])|\\')
# A name in which quotes stand bare, between the keys that Kineto writes around it.
_BARE_NAME = re.compile(r'("name"\s*:\s*")(.*?)("\s*,\s*"(?:pid|ph|cat|tid|ts)"\s*:)', re.DOTALL)
_BARE_QUOTE = re.compile(r'(?<!\\)"')
_HALF = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_JOINED = 16  # pieces that an event may be cut into by what looks like the place between two events

_MALFORMED = (msgspec.DecodeError, UnicodeDecodeError)


def events(content: bytes) -> list[Event] | None:
    """Return the events of a sound piece, None if it is not sound.

    Args:
        content: Objects with commas between them.
    """
    found = _decoded(content)
    return _decoded(_finite(content)) if found is None else found


def rescued(content: bytes) -> tuple[list[Event], int, bytes | None]:
    """Return the readable events of a piece that is not sound.

    Args:
        content: Objects with commas between them; some may be damaged. The list may end among them.

    Returns:
        The events; how many could not be read; and what follows after the end of the list, None
        if the list does not end here.
    """
    found: list[Event] = []
    damaged = 0
    parts = _BETWEEN.split(_finite(content))
    at = 0
    while at < len(parts):
        for event, past, rest in _attempts(parts, at):
            if event is not None:
                found.append(event)
            damaged += event is None
            if rest is not None:
                return found, damaged, rest
            at = past
            break
    return found, damaged, None


def _attempts(parts: list[bytes], at: int) -> Iterator[tuple[Event | None, int, bytes | None]]:
    """Yield the event that begins at a part, where the next begins, and what follows the list."""
    for past in range(at + 1, min(at + _JOINED, len(parts)) + 1):
        joined = b",".join(parts[at:past])
        if (event := _event(joined)) is not None:
            yield event, past, None
        for end in _END.finditer(joined):
            if (event := _event(joined[: end.start() + 1])) is not None:
                yield event, past, b",".join([joined[end.end() :], *parts[past:]])
    last = _SURELY_END.search(parts[at])
    yield None, at + 1, last and b",".join([parts[at][last.end() :], *parts[at + 1 :]])


def _decoded(content: bytes) -> list[Event] | None:
    try:
        return _EVENTS.decode(b"[" + content + b"]")
    except _MALFORMED:
        return None


def _event(content: bytes) -> Event | None:
    try:
        return _EVENT.decode(content)
    except _MALFORMED:
        pass
    try:  # characters that JSON does not allow in text, which Python takes
        text = _BARE_NAME.sub(_quoted, content.decode(errors="replace"))
        text = _HALF.sub(r"\\ufffd", _BACKSLASH.sub(_escaped, text))
        lenient = json.loads(text, strict=False)
        return _EVENT.decode(msgspec.json.encode(lenient))
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return None


def _escaped(backslash: re.Match[str]) -> str:
    return backslash[1] or r"\\"


def _quoted(name: re.Match[str]) -> str:
    return name[1] + _BARE_QUOTE.sub(r'\\"', name[2]) + name[3]


def _finite(content: bytes) -> bytes:
    return _NOT_FINITE.sub(rb"\1null", content)
