"""Writes the metadata of a CTF 1.8 trace: which events there are, and how their bytes are laid out.

The language is TSDL (https://diamon.org/ctf/v1.8.3/). Trace Compass takes a trace for one of LTTng
by its environment (`domain`, `tracer_name`), the clock and the names of events and contexts; so
they are LTTng's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from xsp.level import Kind
from xsp.text import printable

_NS_PER_S = 1_000_000_000

_KINDS = ", ".join(f'"{kind.value}" = {number}' for number, kind in enumerate(Kind))
# Fields of an event end with strings, whose length varies.
BEGIN_FIELDS = f"""
    enum : integer {{ size = 4; align = 1; signed = false; }} {{ {_KINDS} }} _kind;
    integer {{ size = 4; align = 1; signed = false; }} _level;
    uint32_t _span;
    uint32_t _parent;
    int64_t _latency_ns;
    string {{ encoding = UTF8; }} _name;
"""
END_FIELDS = "uint32_t _span;"

_METADATA = """/* CTF 1.8 */

typealias integer {{ size = 8; align = 8; signed = false; }} := uint8_t;
typealias integer {{ size = 16; align = 8; signed = false; }} := uint16_t;
typealias integer {{ size = 32; align = 8; signed = false; }} := uint32_t;
typealias integer {{ size = 64; align = 8; signed = false; }} := uint64_t;
typealias integer {{ size = 32; align = 8; signed = true; }} := int32_t;
typealias integer {{ size = 64; align = 8; signed = true; }} := int64_t;

trace {{
  major = 1;
  minor = 8;
  uuid = "{uuid}";
  byte_order = le;
  packet.header := struct {{
    uint32_t magic;
    uint8_t uuid[16];
    uint32_t stream_id;
  }};
}};

env {{
{env}
}};

clock {{
  name = "monotonic";
  description = "Time of the trace, which begins at the start of its first span";
  freq = 1000000000;
  offset_s = {seconds};
  offset = {nanoseconds};
  absolute = true;
}};

typealias integer {{
  size = 32; align = 8; signed = false; map = clock.monotonic.value;
}} := uint32_clock_t;
typealias integer {{
  size = 64; align = 8; signed = false; map = clock.monotonic.value;
}} := uint64_clock_t;

stream {{
  id = 0;
  packet.context := struct {{
    uint64_clock_t timestamp_begin;
    uint64_clock_t timestamp_end;
    uint64_t content_size;
    uint64_t packet_size;
    uint64_t events_discarded;
  }};
  event.header := struct {{
    uint16_t id;
    uint32_clock_t timestamp;
  }};
  event.context := struct {{
    int32_t {pid};
    int32_t {tid};
    string {{ encoding = UTF8; }} _procname;
  }};
}};
"""
_EVENT = """
event {{
  id = {number};
  name = "{name}";
  stream_id = 0;
  fields := struct {{ {fields} }};
}};
"""
_TRACERS = {"ust": "lttng-ust", "kernel": "lttng-modules"}
_CONTEXTS = {"ust": ("_vpid", "_vtid"), "kernel": ("_pid", "_tid")}


@dataclass(frozen=True, slots=True)
class Layout:
    """What a CTF trace says of itself.

    Attributes:
        domain: Which of LTTng's tracers the trace looks like.
        uuid: Number of the trace, which its packets repeat.
        offset_ns: Wall-clock time at time 0 of the events, in ns since 1970.
        environment: More about where the trace comes from; texts may hold anything.
        events: Name of each kind of event and its fields in TSDL; the number of an event is its
            place here.
    """

    domain: Literal["ust", "kernel"]
    uuid: UUID
    offset_ns: int
    environment: Mapping[str, str]
    events: Sequence[tuple[str, str]]

    def text(self) -> bytes:
        """Return the metadata, in UTF-8."""
        pid, tid = _CONTEXTS[self.domain]
        seconds, nanoseconds = divmod(self.offset_ns, _NS_PER_S)
        tracer = {"domain": self.domain, "tracer_name": _TRACERS[self.domain]}
        env = [
            f'  {name} = "{quoted(text)}";' for name, text in {**tracer, **self.environment}.items()
        ]
        env += ["  tracer_major = 2;", "  tracer_minor = 13;"]
        head = _METADATA.format(
            uuid=self.uuid,
            env="\n".join(env),
            seconds=seconds,
            nanoseconds=nanoseconds,
            pid=pid,
            tid=tid,
        )
        events = [
            _EVENT.format(number=number, name=quoted(name), fields=fields)
            for number, (name, fields) in enumerate(self.events)
        ]
        return "".join([head, *events]).encode("utf-8", "replace")


def quoted(text: str) -> str:
    r"""Return text as it may stand between quotes in TSDL; what cannot be printed is escaped.

    >>> quoted('say "hi"\n')
    'say \\"hi\\"\\\\n'
    """
    return printable(text).replace("\\", "\\\\").replace('"', '\\"')
