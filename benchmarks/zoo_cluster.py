"""How much faster a zoo runs on a cluster of four one-core nodes: the speed-up, printed.

The nodes are on this machine, and their tasks sleep, so that four of them take no more of it than
one. Each node has a folder of its own for the cores that it holds, as four machines have. The ideal
is that the tasks take a fourth of the time that they sleep; connecting and asking the nodes is
part of what is measured.

    python benchmarks/zoo_cluster.py [--tasks 40] [--seconds 5]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ray.cluster_utils import Cluster

from xsp.answer.zoo.row import row_without
from xsp.answer.zoo.task import Point
from xsp.measuring.target import Spec
from xsp.zoo import Row, Task, opened, run_on_ray

NODES = 4
STORE = 80 * 2**20  # bytes; Ray's least are 75 MiB
TRACE = 500_000  # bytes, as many as a trace on levels 1 and 2 has


class Asleep:
    """Stands in for measuring.

    Args:
        seconds: How long each measurement sleeps.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(
        self,
        task: Task,
        points: Sequence[Point],
        scratch: Path,
        tell: object,
        *,
        basis: Mapping[str, str],
    ) -> Iterator[tuple[Row, Path | None]]:
        """Sleep for each point, and yield a row and a file."""
        for point in points:
            time.sleep(self.seconds)
            trace = scratch / "trace"
            trace.write_bytes(bytes(TRACE))
            yield row_without(task, point, "measured", "", took_s=self.seconds, basis=basis), trace


class Clocked:
    """Is told of the run, and notes when."""

    def __init__(self) -> None:
        self.began_s: list[float] = []
        self.ended_s: list[float] = []

    def planned(self, *told: object) -> None:
        """Note nothing."""

    state = stopped = planned

    def began(self, *told: object) -> None:
        """Note when a task was handed out."""
        self.began_s.append(time.monotonic())

    def ended(self, *told: object) -> None:
        """Note when a result was kept."""
        self.ended_s.append(time.monotonic())


def main() -> None:
    """Print the speed-up."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each of a task's two points")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        took_s = measured_s(Path(name), options.tasks, options.seconds)
    alone_s = 2 * options.tasks * options.seconds
    speedup = alone_s / took_s
    print(f"{options.tasks} tasks of {2 * options.seconds:g} s on {NODES} one-core nodes")
    print(f"one after the other {alone_s:.1f} s, on the cluster {took_s:.1f} s")
    print(f"speed-up {speedup:.2f}, {speedup / NODES:.2f} of the ideal")


def measured_s(folder: Path, number: int, seconds: float) -> float:
    """Return how long the tasks take on a cluster."""
    head = {"num_cpus": 0, "object_store_memory": STORE, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(NODES):
            cluster.add_node(num_cpus=1, object_store_memory=STORE, wait=False)
        cluster.wait_for_nodes()
        with opened(folder / "results") as results:
            began, watch = time.monotonic(), Clocked()
            run_on_ray(
                tasks(number), results, watch, address=cluster.address, carry_out=Asleep(seconds)
            )
            took_s = time.monotonic() - began
        asking_s, first_s = watch.began_s[0] - began, watch.ended_s[0] - began - seconds
        print(
            f"the nodes had answered after {asking_s:.1f} s, the first measured after "
            f"{first_s:.1f} s; after the last result {began + took_s - watch.ended_s[-1]:.1f} s"
        )
        return took_s
    finally:
        cluster.shutdown()


def tasks(number: int) -> list[Task]:
    """Return tasks of two points each."""
    return [
        Task(
            f"model{each}",
            tuple(Point(Spec(f"torchvision:model{each}", batch=batch), 1) for batch in (1, 8)),
        )
        for each in range(number)
    ]


if __name__ == "__main__":
    main()
