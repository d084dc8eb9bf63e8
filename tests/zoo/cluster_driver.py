"""A cluster of several nodes on this machine, and what a run on it did, told as JSON.

Ray's threads and processes outlast what used them, so tests run this as a process of its own:
`python cluster_driver.py FOLDER`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from xsp.answer.zoo.row import row_without
from xsp.answer.zoo.task import Point
from xsp.measuring.target import Spec
from xsp.zoo import Row, Task, opened, run_on_ray

NODES = 3
SLEEP_S = 0.25
STORE = 80 * 2**20  # bytes; Ray's least are 75 MiB


def cluster() -> tuple[Any, list[Any]]:
    """Return a cluster of one-core nodes, of which there are more than cores, and its nodes."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: NODES - 1])
    from ray.cluster_utils import Cluster  # noqa: PLC0415  # an extra

    head = {"num_cpus": 0, "object_store_memory": STORE, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=head)
    nodes = [made.add_node(num_cpus=1, object_store_memory=STORE, wait=False) for _ in range(NODES)]
    made.wait_for_nodes()
    return made, nodes


def tasks(number: int, batches: Sequence[int]) -> list[Task]:
    """Return tasks of models that nobody builds."""
    return [
        Task(
            f"model{each}",
            tuple(Point(Spec(f"torchvision:model{each}", batch=batch), 1) for batch in batches),
        )
        for each in range(number)
    ]


ZOO = tasks(6, (1, 2, 4))


class Sleeping:
    """Stands in for measuring: sleeps, and notes in a file what it did when and where.

    Args:
        log: Folder for notes.
        seconds: How long each measurement sleeps.
    """

    def __init__(self, log: Path, seconds: float = SLEEP_S) -> None:
        self.log, self.seconds = log, seconds
        log.mkdir(exist_ok=True)

    def __call__(
        self,
        task: Task,
        points: Sequence[Point],
        scratch: Path,
        tell: object,
        *,
        basis: Mapping[str, str],
    ) -> Iterator[tuple[Row, Path | None]]:
        """Yield a row and a file for each point."""
        process = subprocess.Popen(["sleep", "600"])
        try:
            for point in points:
                began = time.monotonic()
                note = {"key": point.key, "model": task.model, "began": began}
                note["cpus"] = sorted(os.sched_getaffinity(0))
                note["helper"] = process.pid
                self.note("began", note)
                time.sleep(self.seconds)
                self.note("ended", {**note, "ended": time.monotonic()})
                trace = scratch / "trace"
                trace.write_bytes(b"trace of " + task.model.encode() * 50_000)
                yield row_without(task, point, "measured", "", took_s=0.1, basis=basis), trace
        finally:
            process.kill()
            process.wait()

    def note(self, kind: str, what: Mapping[str, Any]) -> None:
        """Leave a note that outlasts the process."""
        path = self.log / f"{kind}-{time.monotonic_ns()}-{os.getpid()}.json"
        path.write_text(json.dumps(what), encoding="utf-8")

    def notes(self, kind: str) -> list[dict[str, Any]]:
        """Return all notes of a kind."""
        paths = sorted(self.log.glob(f"{kind}-*.json"))
        return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


class Telling:
    """Is told of the run, and does something after some results."""

    def __init__(self, after: int = 0, act: Callable[[], object] = list) -> None:
        self.after, self.act, self.kept = after, act, 0
        self.delivered: list[tuple[str, str, str]] = []

    def planned(self, points: int, kept: int, left_s: float) -> None:
        """Note how many points are complete from before."""
        self.kept = kept

    def began(self, task: Task, point: Point, again: str) -> None:
        """Say nothing."""

    def state(self, task: Task, point: Point, state: str) -> None:
        """Say nothing."""

    def ended(self, task: Task, point: Point, row: Row, left_s: float) -> None:
        """Note the result, and act if it is the one."""
        self.delivered.append((task.model, point.key, row["status"]))
        if len(self.delivered) == self.after:
            self.act()

    def stopped(self, points: int, why: str) -> None:
        """Say nothing."""


def lose_a_node(nodes: Any, lost: Any, folder: Path) -> dict[str, Any]:
    """Run a zoo while a node is killed, and then again."""
    sleeping = Sleeping(folder / "log")
    watch = Telling(5, lambda: nodes.remove_node(lost, allow_graceful=False))
    again = Telling()
    with opened(folder / "results") as results:
        for each in (watch, again):
            run_on_ray(ZOO, results, each, address=nodes.address, carry_out=sleeping)
        rows = results.frame().select("model", "settings", "trace").rows()
    return {
        "delivered": watch.delivered,
        "killed_after": watch.after,
        "again": again.delivered,
        "kept": again.kept,
        "rows": rows,
        "ended": sleeping.notes("ended"),
    }


def interrupt(nodes: Any, folder: Path) -> dict[str, Any]:
    """Run a zoo that is interrupted as by Ctrl-C."""
    sleeping = Sleeping(folder / "log2")
    watch = Telling(2, lambda: os.kill(os.getpid(), signal.SIGINT))
    interrupted = False
    with opened(folder / "results2") as results:
        try:
            run_on_ray(ZOO, results, watch, address=nodes.address, carry_out=sleeping)
        except KeyboardInterrupt:
            interrupted = True
        rows = len(results.frame())
    helpers = {note["helper"] for note in sleeping.notes("began")}
    return {
        "interrupted": interrupted,
        "rows after interruption": rows,
        "delivered before interruption": watch.delivered,
        "left running": [pid for pid in helpers if Path(f"/proc/{pid}").exists()],
        "files": sorted(os.listdir(folder / "results2")),
    }


def main(folder: Path) -> dict[str, Any]:
    """Do what the tests are about, on one cluster."""
    nodes, added = cluster()
    try:
        return lose_a_node(nodes, added[0], folder) | interrupt(nodes, folder)
    finally:
        nodes.shutdown()


if __name__ == "__main__":
    json.dump(main(Path(sys.argv[1])), sys.stdout)
