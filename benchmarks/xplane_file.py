"""XPlane files of many events, in the shape of TensorFlow's and JAX's on a CPU.

TensorFlow: steps whose nodes run on two threads of a pool, each with marks of the work that it
hands to two further threads, and every fourth with a memory event of 14 stats. JAX: calls whose
operators of XLA, with 7 stats each, run on a thread of a pool, each with a mark of its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

NODES = 400  # nodes of a step
LAYERS = 50  # scopes of a step
US = 1_000_000  # picoseconds
Stat = tuple[str, int | float | str]


class Host:
    """A plane `/host:CPU` of lines of events."""

    def __init__(self) -> None:
        self._lines: dict[str, bytearray] = {}
        self._kinds: dict[str, int] = {}
        self._stats: dict[str, int] = {}
        self._known: dict[tuple[Stat, ...], bytes] = {}
        self.count = 0

    def add(self, line: str, name: str, start_us: float, us: float, *stats: Stat) -> None:
        """Add an event."""
        kind = self._kinds.setdefault(name, len(self._kinds) + 1)
        if stats not in self._known or len(self._known) > 1000:
            self._known = {stats: b"".join(map(self._stat, stats))}
        times = varint(int(start_us * US)), varint(int(us * US))
        event = b"\x08" + varint(kind) + b"\x10" + times[0] + b"\x18" + times[1]
        self._lines.setdefault(line, bytearray()).extend(field(4, event + self._known[stats]))
        self.count += 1

    def space(self) -> Iterator[bytes]:
        """Yield the bytes of an XSpace that holds the plane."""
        plane = [field(2, b"/host:CPU")]
        for number, (name, events) in enumerate(self._lines.items(), start=1):
            facts = b"\x08" + varint(number) + field(2, name.encode()) + b"\x18" + varint(5000)
            plane.append(field(3, facts + events))
        for at, names in ((4, self._kinds), (5, self._stats)):
            for name, number in names.items():
                value = b"\x08" + varint(number) + field(2, name.encode())
                plane.append(field(at, b"\x08" + varint(number) + field(2, value)))
        yield from (b"\x0a", varint(sum(map(len, plane))), *plane)

    def _stat(self, stat: Stat) -> bytes:
        name, value = stat
        which = b"\x08" + varint(self._number(name))
        if isinstance(value, str):  # texts are names of stats, to which events refer
            return field(4, which + b"\x38" + varint(self._number(value)))
        return field(4, which + b"\x20" + varint(value % (1 << 64)))

    def _number(self, name: str) -> int:
        return self._stats.setdefault(name, len(self._stats) + 1)


def varint(number: int) -> bytes:
    """Return a number in protobuf's notation."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


def field(number: int, payload: bytes) -> bytes:
    """Return a field of bytes."""
    return bytes([number << 3 | 2]) + varint(len(payload)) + payload


def tensorflow(events: int) -> Host:
    """Return a host with about so many events of TensorFlow."""
    host, step = Host(), 0
    while host.count < events:
        _tensorflow_step(host, step)
        step += 1
    return host


def _tensorflow_step(host: Host, step: int) -> None:
    begin, flow = step * NODES * 20.0, -(1 << 61) + step
    host.add("python", "step", begin, NODES * 20 - 10, ("step_num", step), ("_r", 1))
    host.add("python", "FunctionRun", begin + 2, 30, ("_p", flow), ("_pt", 2), ("id", flow))
    for node in range(NODES):
        pool, at = f"tf_Compute/{node % 2}", begin + 40 + (node // 2) * 38
        if node // 2 % 10 == 0:
            taken = (("_c", flow), ("_ct", 2), ("id", flow), ("iter_num", 0))
            host.add(pool, "ExecutorState::Process", at, 370, *taken)
        scope = f"model_1/block{node * LAYERS // NODES}/part_{node % 8}"
        host.add(pool, f"{scope}/op_{node}:{'_FusedConv2D' if node % 8 else 'AddV2'}", at + 1, 35)
        if node % 4 == 0:
            host.add(pool, "MemoryAllocation", at + 2, 0, *_memory(node, flow, scope))
        for part in range(2):
            number = (step * NODES + node) * 2 + part
            worker = f"tf_numa_-1_Eigen/{part}"
            start = begin + 40 + node * 19 + 2
            asked, taken = (("_p", number), ("_pt", 15)), (("_c", number), ("_ct", 15))
            host.add(pool, "ThreadpoolListener::Record", at + 3 + part, 0, *asked)
            host.add(worker, "ThreadpoolListener::StartRegion", start, 0, *taken)
            host.add(worker, "ThreadpoolListener::StopRegion", start + 15, 0)


def _memory(node: int, flow: int, scope: str) -> tuple[Stat, ...]:
    sizes = ("allocation_bytes", "bytes_reserved", "requested_bytes", "bytes_available")
    more = ("data_type", "bytes_allocated", "peak_bytes_in_use", "addr", "fragmentation")
    numbers = tuple((name, 4096 * (node + at)) for at, name in enumerate((*sizes, *more)))
    texts: tuple[Stat, ...] = (("region_type", "output"), ("allocator_name", "cpu"))
    return (*numbers, *texts, ("id", flow), ("tf_op", scope), ("shape", f"[8,{node},32]"))


def jax(events: int) -> Host:
    """Return a host with about so many events of JAX."""
    host, call = Host(), 0
    while host.count < events:
        _jax_call(host, call)
        call += 1
    return host


def _jax_call(host: Host, call: int) -> None:
    begin = call * NODES * 10.0
    host.add("python", "PjitFunction(f)", begin, 50)
    host.add("python", "ThreadpoolListener::Record", begin + 9, 0, ("_p", call), ("_pt", 15))
    pool = f"tf_XLAPjRtCpuClient/{call % 2}"
    taken = (("_c", call), ("_ct", 15))
    host.add(pool, "ThreadpoolListener::StartRegion", begin + 10, 0, *taken)
    for node in range(NODES):
        name, number = f"fusion.{node}", call * NODES + node
        facts = (("run_id", call), ("device_ordinal", 0), ("program_id", 6), ("hlo_op", name))
        flow = (("_p", 1 << 33 | number), ("_pt", 0), ("hlo_module", "jit_f"))
        host.add(pool, name, begin + 11 + node * 9, 7, *facts, *flow)
        host.add(pool, f"end: {name}", begin + 18 + node * 9, 1, ("_c", 1 << 33 | number))
    host.add(pool, "ThreadpoolListener::StopRegion", begin + 15 + NODES * 9, 0)


def write(path: Path, host: Host) -> None:
    """Write a file of the events of a host."""
    with path.open("wb") as file:
        file.writelines(host.space())
