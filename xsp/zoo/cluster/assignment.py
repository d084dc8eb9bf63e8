"""Assignments: tasks and the room on a node in, the task that the node takes next out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from xsp.sweep import Point
from xsp.zoo.cluster.need import Need, need_of, room_of
from xsp.zoo.cluster.node import Node
from xsp.zoo.task import Task

LOSSES = 3  # after so many losses a task itself is what ends its nodes


@dataclass(slots=True)
class Work:
    """What is left of a task.

    Attributes:
        task: The task.
        left: The points that have no result yet.
        losses: How many times the node was lost that had the task.
    """

    task: Task
    left: list[Point]
    losses: int = 0

    def done(self, key: str) -> Point | None:
        """Take the point with that key off those that are left; None: it has its result already."""
        point = next((point for point in self.left if point.key == key), None)
        if point is not None:
            self.left.remove(point)
        return point


@dataclass(frozen=True, slots=True)
class Assignment:
    """Work that a node has.

    Attributes:
        work: The work.
        node: The node.
        need: What the work takes of the node.
    """

    work: Work
    node: Node
    need: Need


class Queue:
    """Work that no node has yet.

    Args:
        works: The work, in the order in which it is handed out.
    """

    def __init__(self, works: Iterable[Work]) -> None:
        self.works = list(works)

    def assign(self, node: Node, running: Iterable[Assignment]) -> Assignment | None:
        """Take off the first work for which a node has room beside what runs there."""
        taken = (each.need for each in running if each.node.id == node.id)
        room = room_of(node).less(taken)
        if room.cores < 1:
            return None
        for place, work in enumerate(self.works):
            need = need_of(work.task, node)
            if need.fits(room):
                return Assignment(self.works.pop(place), node, need)
        return None

    def without(self, nodes: Iterable[Node]) -> list[Work]:
        """Take off and return the work for which no node has room, even where nothing runs."""
        nodes = list(nodes)
        homeless = [
            work
            for work in self.works
            if not any(need_of(work.task, node).fits(room_of(node)) for node in nodes)
        ]
        self.works = [work for work in self.works if work not in homeless]
        return homeless

    def again(self, work: Work) -> None:
        """Put work back that has to go on elsewhere, before all other."""
        self.works.insert(0, work)
