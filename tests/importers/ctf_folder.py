"""CTF traces written by hand, event by event, as LTTng's tracers write them."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

METADATA = """/* CTF 1.8 */
typealias integer {{ size = 32; align = 8; signed = false; }} := uint32_t;
typealias integer {{ size = 64; align = 8; signed = true; }} := int64_t;
trace {{ major = 1; minor = 8; byte_order = le;
  packet.header := struct {{ uint32_t magic; uint32_t stream_id; }}; }};
env {{ domain = "{domain}"; tracer_name = "lttng"; hostname = "node7"; }};
clock {{ name = monotonic; freq = 1000000000; offset = {offset}; }};
typealias integer {{ size = 64; align = 8; signed = false; map = clock.monotonic.value; }}
  := time_t;
stream {{ id = 0;
  packet.context := struct {{ uint32_t events_discarded;
    time_t timestamp_begin; time_t timestamp_end; uint32_t cpu_id; }};
  event.header := struct {{ uint32_t id; time_t timestamp; }};
  {context}
}};
"""
EVENT = """
event {{ id = {id}; name = "{name}"; stream_id = 0; fields := struct {{ {fields} }}; }};
"""
TYPES = {int: "int64_t", str: "string { encoding = UTF8; }"}

Event = tuple[int, str, int, Mapping[str, Any]]  # time in ns, name, thread, fields
BEGAN = 1_700_000_000 * 10**9


def encoded(values: Sequence[int | str]) -> bytes:
    return b"".join(
        struct.pack("<q", value) if isinstance(value, int) else value.encode() + b"\0"
        for value in values
    )


def write(
    folder: Path,
    *streams: Sequence[Event],
    domain: str = "ust",
    thread: str | None = "vtid",
    lost: int = 0,
) -> Path:
    """Write a trace: a stream for each processor.

    Args:
        folder: Where to.
        streams: Events of each processor, in order.
        domain: What the trace says of its tracer.
        thread: Name of the context with an event's thread; None: the trace has no such context.
        lost: Events that the tracer says it discarded, by the end of each stream.
    """
    folder.mkdir(parents=True)
    names: dict[str, Mapping[str, Any]] = {}
    for stream in streams:
        for _, name, _, fields in stream:
            names.setdefault(name, fields)
    text = METADATA.format(
        domain=domain,
        offset=BEGAN,
        context=f"event.context := struct {{ int64_t _{thread}; }};" if thread else "",
    )
    for id, (name, fields) in enumerate(names.items()):
        types = " ".join(f"{TYPES[type(value)]} _{key};" for key, value in fields.items())
        text += EVENT.format(id=id, name=name, fields=types)
    (folder / "metadata").write_text(text)
    ids = list(names)
    for cpu, stream in enumerate(streams):
        body = b"".join(
            struct.pack("<Iq", ids.index(name), at)
            + (encoded([tid]) if thread else b"")
            + encoded(list(fields.values()))
            for at, name, tid, fields in stream
        )
        times = (0, max([at for at, *_ in stream], default=0))
        head = struct.pack("<IIIQQI", 0xC1FC1FC1, 0, lost, *times, cpu)
        (folder / f"channel_{cpu}").write_bytes(head + body)
    return folder
