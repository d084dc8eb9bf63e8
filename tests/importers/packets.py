"""Files in Perfetto's own format, made by the generated classes of the package `perfetto`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from xsp.importers import Recording, Source
from xsp.reading.importers.perfetto import Perfetto

PID, MAIN, GPU = 10, 11, 12  # also the numbers of the tracks
_CORRELATION = 3000  # an extension that the classes do not know


class File:
    """A trace that grows packet by packet, all of one writer."""

    def __init__(self, *, interned: bool = False) -> None:
        self.trace = pb.Trace()
        self.interned = interned
        self._numbers: dict[tuple[str, str], int] = {}
        self.packet(sequence_flags=1)
        self.track(PID, pid=PID, process="python")
        self.track(MAIN, pid=PID, tid=MAIN, thread="main")

    def packet(self, *, writer: int = 1, **fields: Any) -> Any:
        """Add a packet."""
        packet = self.trace.packet.add()
        packet.trusted_packet_sequence_id = writer
        for name, value in fields.items():
            setattr(packet, name, value)
        return packet

    def track(self, uuid: int, **told: Any) -> None:
        """Describe a track: a process, a thread, or one with a name below `parent`."""
        track = self.packet().track_descriptor
        track.uuid = uuid
        if "thread" in told:
            track.thread.pid, track.thread.tid = told["pid"], told["tid"]
            track.thread.thread_name = told["thread"]
        elif "process" in told:
            track.process.pid, track.process.process_name = told["pid"], told["process"]
        if "name" in told:
            track.name = told["name"]
        if "parent" in told:
            track.parent_uuid = told["parent"]

    def number(self, field: str, text: str) -> int:
        """Return the number of an interned text, which is told first."""
        key = field, text
        if key not in self._numbers:
            self._numbers[key] = len(self._numbers) + 1
            entry = getattr(self.packet(sequence_flags=2).interned_data, field).add()
            entry.iid = self._numbers[key]
            if field == "debug_annotation_string_values":
                entry.str = text.encode()
            else:
                entry.name = text
        return self._numbers[key]

    def event(self, kind: int, at: int, track: int = MAIN, **told: Any) -> Any:
        """Add an event, with name, category and arguments as told."""
        name, category, args = (told.get(key) for key in ("name", "category", "args"))
        numbers: dict[str, int] = {}
        if self.interned:
            texts = [("event_names", name), ("event_categories", category)]
            texts += [("debug_annotation_names", key) for key in args or {}]
            texts += [("debug_annotation_string_values", value) for value in (args or {}).values()
                      if isinstance(value, str)]  # fmt: skip
            numbers = {f"{field}:{text}": self.number(field, text) for field, text in texts if text}
        packet = self.packet(timestamp=at, sequence_flags=2)
        event = packet.track_event
        event.type, event.track_uuid = kind, track
        if name is not None:
            if self.interned:
                event.name_iid = numbers[f"event_names:{name}"]
            else:
                event.name = name
        if category is not None:
            if self.interned:
                event.category_iids.append(numbers[f"event_categories:{category}"])
            else:
                event.categories.append(category)
        for key, value in (args or {}).items():
            annotation = event.debug_annotations.add()
            if self.interned:
                annotation.name_iid = numbers[f"debug_annotation_names:{key}"]
            else:
                annotation.name = key
            if self.interned and isinstance(value, str):
                annotation.string_value_iid = numbers[f"debug_annotation_string_values:{value}"]
            else:
                _fill(annotation, value)
        return event

    def slice(self, name: str, start: int, end: int, track: int = MAIN, **told: Any) -> Any:
        """Add a slice: its begin, and its end right behind."""
        event = self.event(1, start, track, name=name, **told)
        self.event(2, end, track)
        return event

    def stages(self) -> None:
        """Tell the names of stages 1 to 3 and of the queues 16 and 17, as torch.profiler does."""
        data = self.packet(sequence_flags=2).interned_data
        known = [(1, "Kernel", 2), (2, "Memcpy", 0), (3, "Memset", 0), (4, "Annotation", 0)]
        for iid, name, category in (*known, (16, "[07] stream 7", 0), (17, "[20] stream 20", 0)):
            data.gpu_specifications.add(iid=iid, name=name, category=category)

    def stage(self, number: int, start: int, end: int, *, stage: int = 1, **told: Any) -> Any:
        """Add a render stage, as told."""
        packet = self.packet(timestamp=start, sequence_flags=2)
        event = packet.gpu_render_stage_event
        event.event_id, event.duration, event.stage_iid = number, end - start, stage
        event.hw_queue_iid, event.gpu_id = told.get("queue", 16), told.get("gpu", 0)
        if "name" in told:
            event.name = told["name"]
        for key, value in told.get("extra", {}).items():
            event.extra_data.add(name=key, value=str(value))
        for size, where in (("grid", "grid_size"), ("block", "workgroup_size")):
            if size in told:
                dim = getattr(event.launch, where)
                dim.x, dim.y, dim.z = told[size]
        for key, value in told.get("args", {}).items():
            event.launch.args.add(name=key, uint_value=value)
        return event

    def bytes(self) -> bytes:
        """Return the content of the file."""
        content: bytes = self.trace.SerializeToString()
        return content

    def write(self, path: Path) -> Path:
        """Write the file into a folder and return its path."""
        (path / "trace.pftrace").write_bytes(self.bytes())
        return path / "trace.pftrace"


def starts(event: Any, *stages: int) -> None:
    """Say which render stages an event started."""
    inner = b"".join(bytes([0x08, stage]) for stage in stages)
    tag = _CORRELATION << 3 | 2
    tagged = bytes([tag & 0x7F | 0x80, tag >> 7 & 0x7F | 0x80, tag >> 14, len(inner)]) + inner
    event.MergeFromString(tagged)


def read(path: Path) -> Recording:
    """Return the one recording that a file holds."""
    (found,) = Perfetto().read(Source(path))
    assert isinstance(found, Recording)
    return found


def _fill(annotation: Any, value: Any) -> None:
    """Write a value as a debug annotation: a number, text, list or dictionary."""
    if isinstance(value, bool):
        annotation.bool_value = value
    elif isinstance(value, int):
        annotation.int_value = value
    elif isinstance(value, float):
        annotation.double_value = value
    elif isinstance(value, str):
        annotation.string_value = value
    elif isinstance(value, list):
        for item in value:
            _fill(annotation.array_values.add(), item)
    else:
        for key, item in value.items():
            entry = annotation.dict_entries.add()
            entry.name = key
            _fill(entry, item)


def of_chrome(events: list[dict[str, Any]]) -> File:
    """Return the file that torch.profiler makes of events of its JSON: all begins, then all ends.

    Kernels, copies and sets become render stages, and every other event a slice.
    """
    file = File()
    file.stages()
    number, tids = 0, {MAIN: MAIN}
    ends: list[tuple[int, int]] = []
    for event in events:
        start, end = (round(x * 1000) for x in (event["ts"], event["ts"] + event.get("dur", 0)))
        args, category = event.get("args", {}), event["cat"]
        if category in ("kernel", "gpu_memcpy", "gpu_memset"):
            number += 1
            extra = {"correlation": args["correlation"], "stream id": args["stream"]}
            extra |= {key: args[key] for key in ("bytes",) if key in args}
            sizes = {key: args[key] for key in ("grid", "block") if key in args}
            stage = {"kernel": 1, "gpu_memcpy": 2, "gpu_memset": 3}[category]
            given = {"name": event["name"]} if stage == 1 else {}
            file.stage(number, start, end, stage=stage, extra=extra, **sizes, **given)
            continue
        tid = event["tid"]
        if tid not in tids:
            tids[tid] = 100 + len(tids)
            file.track(tids[tid], pid=PID, tid=tid, thread=f"thread {tid}", parent=PID)
        file.event(1, start, tids[tid], name=event["name"], category=category,
                   args=json.loads(json.dumps(args)))  # fmt: skip
        ends.append((end, tids[tid]))
    for end, track in ends:
        file.event(2, end, track)
    return file
