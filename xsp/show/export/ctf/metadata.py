"""Writes the metadata of a CTF 1.8 trace: which events there are, and how their bytes are laid out.

The language is TSDL (https://diamon.org/ctf/v1.8.3/). Trace Compass takes a trace for one of LTTng
by its environment (`domain`, `tracer_name`) and by the names of events and contexts; so they are
LTTng's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal
from uuid import UUID

from xsp.level import Kind
from xsp.text import printable

Domain = Literal["ust", "kernel"]

_KINDS = ", ".join(f'"{kind.value}" = {number}' for number, kind in enumerate(Kind))
BEGIN_FIELDS = f"""
  enum : integer {{ size = 4; align = 1; signed = false; }} {{ {_KINDS} }} _kind;
  integer {{ size = 4; align = 1; signed = false; }} _level;
  uint32_t _span; uint32_t _parent; int64_t _latency_ns; string {{ encoding = UTF8; }} _name;
"""
END_FIELDS = "uint32_t _span;"
_THREAD = "string {{ encoding = UTF8; }} _{0}_comm; int32_t _{0}_tid; int32_t _{0}_prio;"
SWITCH_FIELDS = f"{_THREAD.format('prev')} int64_t _prev_state; {_THREAD.format('next')}"
WAKING_FIELDS = (
    "string { encoding = UTF8; } _comm; int32_t _tid; int32_t _prio; int32_t _target_cpu;"
)

_HEAD = """/* CTF 1.8 */
typealias integer {{ size = 8; align = 8; signed = false; }} := uint8_t;
typealias integer {{ size = 16; align = 8; signed = false; }} := uint16_t;
typealias integer {{ size = 32; align = 8; signed = false; }} := uint32_t;
typealias integer {{ size = 64; align = 8; signed = false; }} := uint64_t;
typealias integer {{ size = 32; align = 8; signed = true; }} := int32_t;
typealias integer {{ size = 64; align = 8; signed = true; }} := int64_t;
trace {{
  major = 1; minor = 8; uuid = "{uuid}"; byte_order = le;
  packet.header := struct {{ uint32_t magic; uint8_t uuid[16]; uint32_t stream_id; }};
}};
env {{
  domain = "{domain}"; tracer_name = "{tracer}"; tracer_major = 2; tracer_minor = 13;
{environment}
}};
clock {{
  name = "monotonic"; freq = 1000000000; absolute = true;
  offset_s = {seconds}; offset = {nanoseconds};
}};
typealias integer {{ size = 32; align = 8; signed = false; map = clock.monotonic.value; }}
  := uint32_clock_t;
typealias integer {{ size = 64; align = 8; signed = false; map = clock.monotonic.value; }}
  := uint64_clock_t;
stream {{
  id = 0;
  packet.context := struct {{
    uint64_clock_t timestamp_begin; uint64_clock_t timestamp_end;
    uint64_t content_size; uint64_t packet_size; uint64_t events_discarded; {cpu}
  }};
  event.header := struct {{ uint16_t id; uint32_clock_t timestamp; }};
  event.context := struct {{ int32_t {tid}; string {{ encoding = UTF8; }} _procname; }};
}};
"""
_EVENT = (
    'event {{ id = {id}; name = "{name}"; stream_id = 0; fields := struct {{ {fields} }}; }};\n'
)
# What LTTng calls its tracers, and the context with the number of the thread.
_NAMES = {
    "ust": {"tracer": "lttng-ust", "tid": "_vtid", "cpu": ""},
    "kernel": {"tracer": "lttng-modules", "tid": "_tid", "cpu": "uint32_t cpu_id;"},
}


def metadata(
    domain: Domain,
    uuid: UUID,
    unix_ns: int,
    environment: Mapping[str, str],
    events: Sequence[tuple[str, str]],
) -> bytes:
    """Return the metadata of a trace, in UTF-8.

    Args:
        domain: Which of LTTng's tracers the trace looks like.
        uuid: Number of the trace, which its packets repeat.
        unix_ns: Wall-clock time at time 0 of the events, in ns since 1970.
        environment: More about where the trace comes from; texts may hold anything.
        events: Name of each kind of event, which may hold anything, and its fields in TSDL. The
            number of an event is its place here.
    """
    seconds, nanoseconds = divmod(unix_ns, 1_000_000_000)
    more = "\n".join(f'  {name} = "{quoted(text)}";' for name, text in environment.items())
    times = {"seconds": seconds, "nanoseconds": nanoseconds}
    text = _HEAD.format(domain=domain, uuid=uuid, environment=more, **times, **_NAMES[domain])
    for id, (name, fields) in enumerate(events):
        text += _EVENT.format(id=id, name=quoted(name), fields=fields)
    return text.encode("utf-8", "replace")


def quoted(text: str) -> str:
    r"""Return text as it may stand between quotes in TSDL; what cannot be printed is escaped.

    >>> quoted('say "hi"\n')
    'say \\"hi\\"\\\\n'
    """
    return printable(text).replace("\\", "\\\\").replace('"', '\\"')
