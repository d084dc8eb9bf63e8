"""Selects the sound records of one process, and names their operations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from xsp.reading.importers.rocprofv3.message import Process, Timed, length

Record = TypeVar("Record", bound=Timed)


@dataclass(frozen=True, slots=True)
class Records:
    """The records of a process, and what of them is left out.

    Attributes:
        process: The process.
        left: Records that are not understood, by their sort.
        damaged: Records that are damaged, by their sort.
        marks: Marks of roctx, which have no duration, by name.
        asked: Sorts that were asked for.
    """

    process: Process
    left: Counter[str] = field(default_factory=Counter)
    damaged: Counter[str] = field(default_factory=Counter)
    marks: Counter[str] = field(default_factory=Counter)
    asked: set[str] = field(default_factory=set)

    def sound(self, name: str, kind: type[Record]) -> list[Record]:
        """Return the records of a sort that have a start, and an end after it.

        Args:
            name: The sort: `hip_api`.
            kind: What the records are decoded as.
        """
        self.asked.add(name)
        raw = self.process.buffer_records.get(name)
        if raw is None:
            return []
        try:
            records: list[Record] = msgspec.json.decode(raw, type=list[kind])  # type: ignore[valid-type]
        except msgspec.ValidationError:
            self.damaged[f"{name} of another form"] += length(raw)
            return []
        sound = [each for each in records if _is_sound(each)]
        if len(sound) < len(records):
            self.damaged[name] += len(records) - len(sound)
        return sound

    def operations(self, records: Sequence[Timed]) -> list[str]:
        """Return the name of what each record is of."""
        known = {
            (kind, number): name
            for kind, table in enumerate(self.process.strings.buffer_records)
            for number, name in enumerate(table.operations)
        }
        return [
            known.get((each.kind, each.operation), f"operation {each.operation}")
            for each in records
        ]

    def count_others(self) -> None:
        """Count the records of sorts that nothing asked for."""
        for records in (self.process.buffer_records, self.process.callback_records):
            for name, raw in records.items():
                if name not in self.asked and (count := length(raw)):
                    self.left[name] += count


def times(records: Sequence[Timed]) -> dict[str, list[Any]]:
    """Return the columns of start and end."""
    return {
        "start_ns": [each.start_timestamp for each in records],
        "end_ns": [each.end_timestamp for each in records],
    }


def _is_sound(record: Timed) -> bool:
    start, end = record.start_timestamp, record.end_timestamp
    return isinstance(start, int) and isinstance(end, int) and 0 <= start <= end < 1 << 63
