"""Needs: a task and a node in, the cores, GPUs and memory that the task takes there out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from xsp.text import counted
from xsp.zoo.cluster.node import Node
from xsp.zoo.task import Task


@dataclass(frozen=True, slots=True)
class Need:
    """What a task takes of a node, or what a node has.

    Attributes:
        cores: Physical cores.
        gpus: Whole GPUs.
        memory_bytes: Memory.
    """

    cores: int
    gpus: int
    memory_bytes: int

    def __str__(self) -> str:
        """Return the need in words."""
        words = [counted(self.cores, "core")]
        words += [counted(self.gpus, "GPU")] if self.gpus else []
        words += [f"{self.memory_bytes / 2**30:.3g} GiB of memory"] if self.memory_bytes else []
        return ", ".join(words)

    def fits(self, room: Need) -> bool:
        """Return whether there is room for the need."""
        return (
            self.cores <= room.cores
            and self.gpus <= room.gpus
            and self.memory_bytes <= room.memory_bytes
        )

    def less(self, taken: Iterable[Need]) -> Need:
        """Return what is left when other needs are met."""
        left = self
        for need in taken:
            left = Need(
                left.cores - need.cores,
                left.gpus - need.gpus,
                left.memory_bytes - need.memory_bytes,
            )
        return left


def need_of(task: Task, node: Node) -> Need:
    """Return what a task takes of a node.

    A task takes a core for each of its threads. Where the zoo leaves their number to the
    framework, which takes all that there are, the task has the node for itself; a task on a GPU
    has the cores that fall to one GPU of the node.
    """
    gpus = int((task.points[0].spec.device or "cpu").startswith("cuda"))
    share = node.cores // max(1, node.gpus) if gpus else node.cores
    cores = min(task.points[0].threads or max(1, share), node.cores)
    return Need(cores, gpus, task.limits.memory_bytes or 0)


def room_of(node: Node) -> Need:
    """Return what a node has where nothing runs."""
    return Need(node.cores, node.gpus, node.memory_bytes)
