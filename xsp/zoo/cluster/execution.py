"""Execution on a cluster: tasks in, the result of each of their points in the folder out."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from xsp.errors import MeasurementError
from xsp.machine import replacing
from xsp.zoo.cluster.assignment import LOSSES, Assignment, Queue, Work
from xsp.zoo.cluster.connection import connected
from xsp.zoo.cluster.need import need_of
from xsp.zoo.cluster.node import Node, nodes_of
from xsp.zoo.cluster.part import CarryOut, Order, carry, checksums
from xsp.zoo.execution import Pace, Tally, Todo, Watch, left_of, scratch_in, with_limits
from xsp.zoo.results import Folder, Row, row_without
from xsp.zoo.task import Task
from xsp.zoo.work import carry_out as carry_out_here

_LOOK_S = 5.0  # between looks for nodes that have joined or answer again
_WAIT_S = 0.5
_CANCEL_S = 5.0  # for processes to end, before they are killed
_FAILURES = 3  # in a row, after which a node gets no more tasks
_AHEAD = 1  # results that wait on a node for the driver, besides the one that is made


def run_on_ray(  # noqa: PLR0913  # those of `run`, and two of its own
    tasks: Sequence[Task],
    folder: Folder,
    watch: Watch,
    *,
    address: str | None = None,
    total_s: float | None = None,
    again: bool = False,
    carry_out: CarryOut = carry_out_here,
) -> Tally:
    """Measure on the nodes of a Ray cluster what has no complete result yet, as `run` does here.

    Args:
        tasks: The tasks, in the order in which they are handed out.
        folder: Where results are kept.
        watch: What is told of it.
        address: Address of the cluster; None: that of this machine.
        total_s: Seconds after which no further measurement begins; None: no limit.
        again: Whether points are measured that have a complete result as well.
        carry_out: What measures on the nodes.

    Raises:
        MeasurementError: Ray is missing, no cluster answers, a node lacks what it needs, or no
            node is left.
        ExportError: A result could not be kept.
        KeyboardInterrupt: Interrupted; what is complete is kept, and nothing runs any more.
    """
    deadline = math.inf if total_s is None else time.monotonic() + total_s
    with scratch_in(folder.path) as scratch, connected(address) as ray:
        run = _Run(ray, folder, watch, deadline, carry_out, scratch / "received.xsp")
        try:
            return run.all(tasks, again=again)
        finally:
            run.cancel()


class _Run:
    """A run under way: the nodes, and what each of them has."""

    def __init__(
        self,
        ray: Any,
        folder: Folder,
        watch: Watch,
        deadline: float,
        carry_out: CarryOut,
        received: Path,
    ) -> None:
        self._received = received
        self._ray, self._folder, self._watch = ray, folder, watch
        self._deadline, self._carry_out = deadline, carry_out
        self._tally, self._pace = Tally(), Pace(())
        self._files: dict[str, str] = {}
        self._nodes: dict[str, Node] = {}
        self._useless: dict[str, str] = {}  # nodes that get nothing any more, and why
        self._failures: Counter[str] = Counter()  # in a row, by node
        self._running: dict[Any, Assignment] = {}
        self._queue = Queue(())
        self._look_s = 0.0

    def all(self, tasks: Sequence[Task], *, again: bool) -> Tally:
        """Measure all that has no complete result yet, or all again."""
        self._files = checksums(sorted({str(file) for task in tasks if (file := _file(task))}))
        self._look()
        if self._useless:  # one that joins later just gets nothing
            raise MeasurementError(next(iter(self._useless.values())))
        self._check_nodes()
        todos = [todo for task in tasks if (todo := self._todo(task, again=again)).points]
        self._pace = Pace(todos)
        self._queue = Queue([Work(todo.task, list(todo.points)) for todo in todos])
        points = sum(len(task.points) for task in tasks)
        self._watch.planned(points, self._tally.counts.total(), self._left_s)
        while self._queue.works or self._running:
            if time.monotonic() > self._look_s:
                self._look()
            self._start()
            if self._running:
                self._receive()
            else:
                self._give_up()
        return self._tally

    def cancel(self) -> None:
        """End what runs on the nodes, and wait until it has ended."""
        ray = self._ray
        for generator in self._running:
            ray.cancel(generator)
        ends = {generator.completed(): generator for generator in self._running}
        if ends:
            _, late = ray.wait(list(ends), num_returns=len(ends), timeout=_CANCEL_S)
            for end in late:
                ray.cancel(ends[end], force=True)
        self._running.clear()

    def _todo(self, task: Task, *, again: bool) -> Todo:
        """Return what is left of a task, whichever node has measured the rest."""
        bases = [node.basis(task, need_of(task, node).cores) for node in self._nodes.values()]
        left = task.points if again else left_of(task, bases, self._folder, self._tally)
        return Todo(task, bases[0], left)

    @property
    def _left_s(self) -> float:
        """Estimate of the seconds until the end, where as much goes on at once as now."""
        return self._pace.left_s / max(1, len(self._running) or len(self._nodes))

    def _look(self) -> None:
        """Note which nodes are there, and ask those that are new."""
        alive = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
        self._nodes = {id: node for id, node in self._nodes.items() if id in alive}
        known = {*self._nodes, *self._useless}
        nodes, refused = nodes_of(self._ray, self._files, str(Path.cwd()), known)
        self._nodes |= {node.id: node for node in nodes}
        self._useless |= refused
        self._look_s = time.monotonic() + _LOOK_S

    def _check_nodes(self) -> None:
        """Refuse to go on where no node is left.

        Raises:
            MeasurementError: No node is left.
        """
        if not self._nodes:
            why = "; ".join(self._useless.values()) or "they were lost, or have no CPU for tasks"
            raise MeasurementError(
                f"no node of the cluster is left: {why}; the same command goes on where it was"
            )

    def _start(self) -> None:
        """Give each node what it has room for."""
        running: dict[str, list[Assignment]] = defaultdict(list)
        for given in self._running.values():
            running[given.node.id].append(given)
        for node in self._nodes.values():
            while not self._late and (more := self._queue.assign(node, running[node.id])):
                self._running[self._handed(more)] = more
                running[node.id].append(more)

    @property
    def _late(self) -> bool:
        return time.monotonic() > self._deadline

    def _handed(self, given: Assignment) -> Any:
        """Hand work to a node, and return the generator of its results."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415

        task, node, need = given.work.task, given.node, given.need
        basis = node.basis(task, need.cores)
        first = given.work.left[0]
        again = self._folder.why_again(task, first, with_limits(task, basis))
        self._watch.began(task, first, again)
        self._watch.state(task, first, f"on {node.host}")
        numbers = tuple(task.points.index(point) for point in given.work.left)
        order = Order(task.to_json(), numbers, need.cores, basis, str(Path.cwd()))
        remote = self._ray.remote(carry).options(
            num_cpus=need.cores,
            num_gpus=need.gpus,
            memory=need.memory_bytes or None,
            num_returns="streaming",
            # Ray would measure all points again: what is left is handed out anew instead.
            max_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
            _generator_backpressure_num_objects=_AHEAD,
        )
        return remote.remote(order, self._carry_out)

    def _receive(self) -> None:
        """Keep the results that nodes have ready."""
        ray = self._ray
        ready, _ = ray.wait(list(self._running), num_returns=1, timeout=_WAIT_S, fetch_local=False)
        for generator in ready:
            given = self._running[generator]
            try:
                row, trace = ray.get(next(generator))
            except StopIteration:
                self._ended(generator, "its node sent no result")
            except ray.exceptions.TaskCancelledError:
                self._ended(generator, "")
            except ray.exceptions.RayTaskError as error:
                # Not the model, but what measures it, as where the disk is full.
                self._failures[given.node.id] += 1
                if self._failures[given.node.id] == _FAILURES:
                    self._useless[given.node.id] = f"{given.node.host}: {error.cause}"
                self._ended(generator, f"{given.node.host} could not measure it: {error.cause}")
            except ray.exceptions.RayError as error:
                self._ended(generator, f"{given.node.host} was lost: {_first(error)}")
            else:
                self._failures[given.node.id] = 0
                self._keep(given.work, row, trace)
                if self._late:
                    ray.cancel(generator)

    def _ended(self, generator: Any, why: str) -> None:
        """Note that a node has no work any more; what is left of it goes on elsewhere."""
        given = self._running.pop(generator)
        work = given.work
        if not work.left:
            return
        if not why:  # stopped, for the time is over
            self._queue.again(work)
            return
        # A node on which something was lost has to answer again.
        self._nodes.pop(given.node.id, None)
        self._look_s = 0.0
        work.losses += 1
        if work.losses < LOSSES:
            self._queue.again(work)
        else:
            basis = given.node.basis(work.task, given.need.cores)
            self._fail(work, f"given up after {LOSSES} attempts; the last time {why}", basis)

    def _fail(self, work: Work, reason: str, basis: Mapping[str, str]) -> None:
        for point in tuple(work.left):
            row = row_without(work.task, point, "crashed", reason, took_s=None, basis=basis)
            self._keep(work, row, None)

    def _keep(self, work: Work, row: Row, trace: bytes | None) -> None:
        point = work.done(row["settings"])
        if point is None:
            return
        row = self._folder.keep(row, None if trace is None else self._written(trace))
        self._tally.add(row)
        self._pace.add(row)
        self._watch.ended(work.task, point, row, self._left_s)

    def _written(self, trace: bytes) -> Path:
        with replacing(self._received) as file:  # it is on the disk before its row is
            file.write(trace)
        return self._received

    def _give_up(self) -> None:
        """Say of what nothing can be done with why, when nothing runs and nothing can be started.

        Raises:
            MeasurementError: No node is left.
        """
        if self._late:
            self._tally.left_out = self._pace.left
            self._watch.stopped(self._pace.left, "the total budget is over")
            self._queue = Queue(())
            return
        self._look()
        self._check_nodes()
        for work in self._queue.without(self._nodes.values()):
            node = next(iter(self._nodes.values()))
            need = need_of(work.task, node)
            self._fail(
                work, f"no node of the cluster has {need}", node.basis(work.task, need.cores)
            )


def _file(task: Task) -> Path | None:
    return task.points[0].spec.file


def _first(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
