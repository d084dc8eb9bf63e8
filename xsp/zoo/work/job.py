"""Jobs: a task, and those of its points that are left, in; a file for the task's process out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xsp.sweep import Point
from xsp.zoo.task import Task

JOB = "job.json"
_LONGEST = 2000  # characters of a reason, of which models may give megabytes


@dataclass(frozen=True, slots=True)
class Job:
    """What a process of a task is told.

    Attributes:
        task: The task.
        points: The points that are left to measure.
        basis: What the results rest on.
        folder: Where the job, the rows and the traces lie.
        directory: The working directory.
        begin_s: When the process was started, by the monotonic clock of the machine.
        speak: Descriptor on which the process says how far it is, a line of JSON each time.
        life: Descriptor that is closed at its other end when the process is to end.
    """

    task: Task
    points: tuple[Point, ...]
    basis: Mapping[str, str]
    folder: Path
    directory: Path
    begin_s: float
    speak: int
    life: int

    def save(self) -> Path:
        """Write the job into its folder, and return the path."""
        numbers = [self.task.points.index(point) for point in self.points]
        data: dict[str, Any] = {
            "task": self.task.to_json(),
            "points": numbers,
            "basis": dict(self.basis),
        }
        data |= {"folder": str(self.folder), "directory": str(self.directory)}
        data |= {"begin_s": self.begin_s, "speak": self.speak, "life": self.life}
        path = self.folder / JOB
        path.write_text(json.dumps(data), encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: Path) -> Job:
        """Return the job that `save` wrote."""
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        task = Task.from_json(data["task"])
        points = tuple(task.points[number] for number in data["points"])
        folders = Path(data["folder"]), Path(data["directory"])
        rest = (data[name] for name in ("begin_s", "speak", "life"))
        return cls(task, points, data["basis"], *folders, *rest)

    def row(self, number: int) -> Path:
        """Return where the row of a point lies."""
        return self.folder / f"{number}.json"

    def trace(self, number: int) -> Path:
        """Return where the trace of a point lies."""
        return self.folder / f"{number}.xsp"


def shortened(reason: str, keep: Sequence[int] = (_LONGEST // 2, _LONGEST // 2)) -> str:
    """Return a reason whose middle is left out if it is too long for a table.

    >>> shortened("a model may say a lot", (5, 3))
    'a mod … lot'
    """
    begin, end = keep
    if len(reason) <= begin + end:
        return reason
    return f"{reason[:begin]} … {reason[-end:].lstrip()}"
