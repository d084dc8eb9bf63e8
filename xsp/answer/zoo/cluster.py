"""Clusters: measures the tasks of a zoo on a Ray cluster, whose nodes Ray chooses.

Ray places a task where its cores, GPUs and memory are free, among the nodes that have answered as
they should. A node holds the cores of a measurement, and sends each row with its trace to the
driver, which alone writes them.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import signal
import socket
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from xsp import __version__
from xsp.answer.zoo import core
from xsp.answer.zoo.execution import LATE, Pace, Tally, Watch, scratch_in, todo_of, with_limits
from xsp.answer.zoo.folder import Folder
from xsp.answer.zoo.process import carry_out as carry_out_here
from xsp.answer.zoo.row import CRASHED, Row, row_without
from xsp.answer.zoo.task import Point, Task, basis_of, machine_facts
from xsp.errors import MeasurementError
from xsp.machine import replacing
from xsp.record.session import usable_cores

_LOSSES = 3  # after so many losses a task itself is what ends its nodes
_FAILURES = 3  # in a row, after which a node gets no more tasks
_LOOK_S = 5.0  # between looks for nodes that have joined or were lost
_WAIT_S = 0.5
_CANCEL_S = 5.0  # for processes to end, before they are killed
_ANSWER_S = 5.0
_PATIENCE_S = 120.0  # a node that is busy with other jobs answers late
_OMP = "OMP_NUM_THREADS"

CarryOut = Callable[..., Iterator[tuple[Row, Path | None]]]
"""Measures points of a task: `xsp.answer.zoo.process.carry_out`, or a stand-in of tests."""


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of the cluster, or the part of one that Ray may use.

    Its `cores` are physical ones, `facts` those of `machine_facts`, and `usable` says how many
    cores are usable to a process that holds 1, 2, … of them.
    """

    id: str
    host: str
    cores: int
    gpus: int
    memory_bytes: int
    facts: Mapping[str, str]
    usable: tuple[float, ...]

    def place(self, task: Task) -> tuple[int, dict[str, str]]:
        """Return how many cores a task takes there, and the facts that its results rest on.

        A task takes a core for each of its threads. Where the zoo leaves their number to the
        framework, which takes all that there are, the task has the node for itself; on a GPU, the
        cores that fall to one GPU of the node.
        """
        share = self.cores // max(1, self.gpus) if _gpus(task) else self.cores
        cores = min(task.points[0].threads or max(1, share), self.cores)
        facts = {**self.facts, "usable cores": str(self.usable[cores - 1])}
        return cores, basis_of(task.points[0].spec, task.plan, facts)

    def fits(self, task: Task) -> bool:
        """Return whether the node has the GPU and the memory that a task needs."""
        return self.gpus >= _gpus(task) and self.memory_bytes >= (task.limits.memory_bytes or 0)


@dataclass(frozen=True, slots=True)
class Order:
    """The order that a node carries out.

    Attributes:
        task: The task, as `Task.to_json` has it.
        points: Numbers of the points that are to be measured.
        places: Cores that the task may have, and what its results rest on, by the id of the node.
        folder: Folder in which the driver runs.
        until_s: When no further measurement begins, in seconds since the epoch.
    """

    task: Mapping[str, Any]
    points: tuple[int, ...]
    places: Mapping[str, tuple[int, dict[str, str]]]
    folder: str
    until_s: float


@dataclass(slots=True)
class _Work:
    """A task under way: the points without a result, losses of its node, and that node."""

    task: Task
    left: list[Point]
    losses: int = 0
    node: Node | None = None


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
        folder: As of `run`.
        watch: As of `run`.
        address: Address of the cluster; None: that of this machine.
        total_s: As of `run`.
        again: As of `run`.
        carry_out: Measures on the nodes.

    Raises:
        MeasurementError: Ray is missing, no cluster answers, a node lacks what it needs, or no
            node is left.
        ExportError: A result could not be kept.
        KeyboardInterrupt: Interrupted; what is complete is kept, and nothing runs any more.
    """
    files = checksums({str(file) for task in tasks if (file := task.points[0].spec.file)})
    until_s = math.inf if total_s is None else time.time() + total_s
    with scratch_in(folder.path) as scratch, connected(address) as ray:
        run = _Run(ray, folder, watch, carry_out, scratch / "received.xsp")
        run.files, run.until_s = files, until_s
        try:
            return run.all(tasks, again=again)
        finally:
            run.cancel(list(run.running))


class _Run:
    """A run under way: its nodes, the tasks that Ray has, and those that it gets next."""

    def __init__(
        self, ray: Any, folder: Folder, watch: Watch, carry_out: CarryOut, received: Path
    ) -> None:
        self._ray, self._folder, self._watch = ray, folder, watch
        self._remote = ray.remote(carry)
        self._carry_out, self._received = carry_out, received
        self._tally, self._pace = Tally(), Pace(())
        self._nodes: dict[str, Node] = {}
        self._refused: dict[str, str] = {}  # nodes that get nothing, and why
        self._failures: Counter[str] = Counter()  # in a row, by node
        self._queue: deque[_Work] = deque()
        self._look_s = 0.0
        self.running: dict[Any, _Work] = {}
        self.files: Mapping[str, str] = {}
        self.until_s = math.inf

    def all(self, tasks: Sequence[Task], *, again: bool) -> Tally:
        """Measure all that has no complete result yet, or all again."""
        self._look()
        if self._refused:  # one that joins later just gets nothing
            raise MeasurementError(next(iter(self._refused.values())))
        todos = []
        for task in tasks:
            # Whichever node has measured a point, it is complete.
            bases = [node.place(task)[1] for node in self._nodes.values()]
            todos.append(todo_of(task, bases, self._folder, self._tally, again=again))
        self._pace = Pace(todos)
        self._queue.extend(_Work(todo.task, list(todo.points)) for todo in todos if todo.points)
        kept = self._tally.counts.total()
        self._watch.planned(kept + self._pace.left, kept, self._left_s)
        while self._queue or self.running:
            if time.monotonic() > self._look_s:
                self._look()
            self._submit()
            self._receive()
        if self._pace.left:
            self._tally.left_out = self._pace.left
            self._watch.stopped(self._pace.left, LATE)
        return self._tally

    def cancel(self, generators: Sequence[Any]) -> None:
        """End tasks, and wait until what they started has ended."""
        for generator in generators:
            self._ray.cancel(generator)
            self.running.pop(generator)
        ends = {generator.completed(): generator for generator in generators}
        if ends:
            _, late = self._ray.wait(list(ends), num_returns=len(ends), timeout=_CANCEL_S)
            for end in late:
                self._ray.cancel(ends[end], force=True)

    @property
    def _left_s(self) -> float:
        """Estimate of the seconds until the end, where as much goes on at once as now."""
        begun = sum(work.node is not None for work in self.running.values())
        return self._pace.left_s / max(1, begun or len(self._nodes))

    def _look(self) -> None:
        """Note which nodes are there, and ask those that are new.

        Raises:
            MeasurementError: No node is left.
        """
        alive = {node["NodeID"]: node for node in self._ray.nodes() if node["Alive"]}
        lost = self._nodes.keys() - alive.keys()
        self._nodes = {id: node for id, node in self._nodes.items() if id not in lost}
        new = [
            entry
            for id, entry in alive.items()
            if entry["Resources"].get("CPU", 0) >= 1 and id not in {*self._nodes, *self._refused}
        ]
        answers = _asked(self._ray, [each["NodeID"] for each in new], tuple(self.files))
        for entry in new:
            if answer := answers.get(entry["NodeID"]):  # else it was lost meanwhile
                try:
                    self._nodes[entry["NodeID"]] = _node(entry, answer, self.files)
                except MeasurementError as error:
                    self._refused[entry["NodeID"]] = str(error)
        if not self._nodes:
            why = "; ".join(self._refused.values()) or "they were lost, or have no CPU for tasks"
            raise MeasurementError(
                f"no node of the cluster is left: {why}; the same command goes on where it was"
            )
        if lost:
            self._withdraw()
        self._look_s = time.monotonic() + _LOOK_S

    def _withdraw(self) -> None:
        """Take back the tasks that have not begun: Ray may place them on a node that is gone."""
        waiting = [each for each, work in self.running.items() if work.node is None]
        self._queue.extendleft(reversed([self.running[each] for each in waiting]))
        self.cancel(waiting)

    def _submit(self) -> None:
        """Give Ray as many tasks as nodes can have at once, and one more each to wait there."""
        if time.time() > self.until_s:
            self._queue.clear()
        most = sum(node.cores + 1 for node in self._nodes.values())
        while self._queue and len(self.running) < most:
            work = self._queue.popleft()
            task = work.task
            nodes = [node for node in self._nodes.values() if node.fits(task)]
            if nodes:
                self.running[self._submitted(work, nodes)] = work
                continue
            memory = task.limits.memory_bytes
            words = ["a GPU"] * _gpus(task)
            words += [f"{memory / 2**30:.3g} GiB of memory"] if memory else []
            node = next(iter(self._nodes.values()))
            self._fail(work, f"no node of the cluster has {' and '.join(words)}", node)

    def _submitted(self, work: _Work, nodes: Sequence[Node]) -> Any:
        """Give Ray a task for one of some nodes, and return the generator of its results."""
        from ray.util.scheduling_strategies import (  # noqa: PLC0415  # an extra
            In,
            NodeLabelSchedulingStrategy,
        )

        task, work.node = work.task, None
        places = {node.id: node.place(task) for node in nodes}
        numbers = tuple(task.points.index(point) for point in work.left)
        order = Order(task.to_json(), numbers, places, str(Path.cwd()), self.until_s)
        remote = self._remote.options(
            # Nodes are unlike, and Ray takes one number: that which every one of them has.
            num_cpus=min(cores for cores, _ in places.values()),
            num_gpus=_gpus(task),
            memory=task.limits.memory_bytes,
            num_returns="streaming",
            # Ray would measure all points again: what is left is handed out anew instead.
            max_retries=0,
            scheduling_strategy=NodeLabelSchedulingStrategy({"ray.io/node-id": In(*places)}),
            # One result waits on a node for the driver, besides the one that is made.
            _generator_backpressure_num_objects=1,
        )
        return remote.remote(order, self._carry_out)

    def _receive(self) -> None:
        """Keep the results that nodes have ready."""
        ray = self._ray
        if not self.running:
            return
        ready, _ = ray.wait(list(self.running), num_returns=1, timeout=_WAIT_S, fetch_local=False)
        for generator in ready:
            if generator not in self.running:  # withdrawn meanwhile
                continue
            work = self.running[generator]
            host = work.node.host if work.node else "its node"
            try:
                item = ray.get(next(generator))
            except StopIteration:
                self._ended(generator, f"{host} sent no result")
            except ray.exceptions.RayTaskError as error:
                # Not the model, but what measures it, as where the disk is full.
                why = f"{host} could not measure it: {error.cause}"
                if work.node is not None:
                    self._failures[work.node.id] += 1
                    if self._failures[work.node.id] >= _FAILURES:
                        self._refused[work.node.id] = f"{host}: {error.cause}"
                self._ended(generator, why)
            except ray.exceptions.RayError as error:
                said = str(error).strip().splitlines() or [type(error).__name__]
                self._ended(generator, f"{host} was lost: {said[0]}")
            else:
                self._take(work, item)

    def _take(self, work: _Work, item: tuple[Any, bytes | None]) -> None:
        """Keep a result, or note the node on which a task has begun, which comes first."""
        row, trace = item
        if isinstance(row, str):
            work.node = self._nodes.get(row)
            if work.node is not None:
                bases = with_limits(work.task, work.node.place(work.task)[1])
                again = self._folder.why_again(work.task, work.left[0], bases)
                self._watch.began(work.task, work.left[0], again)
                self._watch.state(work.task, work.left[0], f"on {work.node.host}")
            return
        if work.node is not None:
            self._failures[work.node.id] = 0
        if trace is not None:
            with replacing(self._received) as file:  # it is on the disk before its row is
                file.write(trace)
        self._keep(work, row, None if trace is None else self._received)

    def _keep(self, work: _Work, row: Row, trace: Path | None) -> None:
        point = next(point for point in work.left if point.key == row["settings"])
        work.left.remove(point)
        row = self._folder.keep(row, trace)
        self._tally.add(row)
        self._pace.add(row)
        self._watch.ended(work.task, point, row, self._left_s)

    def _ended(self, generator: Any, why: str) -> None:
        """Note that a task has ended; its points that are left go on elsewhere, before others."""
        work = self.running.pop(generator)
        if not work.left or time.time() > self.until_s:
            return
        node = work.node or next(iter(self._nodes.values()))
        # A node on which something was lost has to answer again.
        if work.node is not None:
            self._nodes.pop(work.node.id, None)
            self._withdraw()
        self._look_s = 0.0
        work.losses += 1
        if work.losses < _LOSSES:
            self._queue.appendleft(work)
        else:
            self._fail(work, f"given up after {_LOSSES} attempts; the last time {why}", node)

    def _fail(self, work: _Work, reason: str, node: Node) -> None:
        for point in tuple(work.left):
            basis = node.place(work.task)[1]
            row = row_without(work.task, point, CRASHED, reason, took_s=None, basis=basis)
            self._keep(work, row, None)


def carry(order: Order, carry_out: CarryOut) -> Iterator[tuple[Row | str, bytes | None]]:
    """Measure points on this node: yield its id, then the row of each and the bytes of its trace.

    The cores are held for as long as this runs. Rows and traces are read and sent on the same
    cores: elsewhere this would disturb the measurements of others.

    Args:
        order: Tells what is measured.
        carry_out: Measures.
    """
    import ray  # noqa: PLC0415  # an extra

    id = ray.get_runtime_context().get_node_id()
    yield id, None
    cores, basis = order.places[id]
    task = Task.from_json(order.task)
    points = [task.points[number] for number in order.points]
    with ExitStack() as stack:
        stack.enter_context(_surroundings(order.folder))
        stack.enter_context(core.held(cores))
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="xsp-zoo-")))
        # Nobody is told how far a measurement is: a message a second from each node is too many.
        rows = carry_out(task, points, scratch, lambda *_: None, basis=basis)
        stack.callback(rows.close)  # type: ignore[attr-defined]  # a generator
        while time.time() < order.until_s and (found := next(rows, None)):
            row, trace = found
            content = None if trace is None else trace.read_bytes()
            if trace is not None:
                trace.unlink()
            yield row, content


def examined(
    files: Sequence[str], folder: str
) -> tuple[dict[str, str], list[float], dict[str, str]]:
    """Return the facts of this node, how many cores 1, 2, … held ones make usable, and checksums.

    Args:
        files: Names of files that targets are in.
        folder: Folder in which the driver runs.
    """
    with _surroundings(folder):
        usable = []
        for number in range(1, min(len(core.usable()), max(1, int(usable_cores()))) + 1):
            with core.pinned(core.chosen(number)):
                usable.append(usable_cores())
        return machine_facts(), usable, checksums(files)


def checksums(files: Iterable[str]) -> dict[str, str]:
    """Return the checksums of those files that are here, by name."""
    found = {}
    for name in sorted(files):
        if Path(name).is_file():
            with Path(name).open("rb") as file:
                found[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


@contextmanager
def _surroundings(folder: str) -> Iterator[None]:
    """Be where the driver is, if there is such a folder here, and without Ray's number of threads.

    Ray tells OpenMP how many threads a task was given, where nobody else has: the cores that are
    held say so already, and results elsewhere do not rest on that variable.
    """
    added = _OMP in os.environ and _OMP not in psutil.Process().environ()
    value = os.environ.pop(_OMP) if added else None
    try:
        # A job that Ray brought the files for is in the right folder already.
        with chdir(folder if Path(folder).is_dir() else Path.cwd()):
            yield
    finally:
        if value is not None:
            os.environ[_OMP] = value


def _gpus(task: Task) -> int:
    return int((task.points[0].spec.device or "cpu").startswith("cuda"))


def _asked(ray: Any, ids: Sequence[str], files: Sequence[str]) -> dict[str, Any]:
    """Return the answer of each node, by its id; none of nodes that are lost meanwhile."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415

    folder = str(Path.cwd())

    def question(version: str) -> Any:  # travels by value: there may be no xsp
        from importlib import metadata  # noqa: PLC0415

        try:
            found = metadata.version("xsp")
        except metadata.PackageNotFoundError:
            return None, None
        if found != version:
            return found, None
        from xsp.answer.zoo.cluster import examined  # noqa: PLC0415

        return found, examined(files, folder)

    ask = ray.remote(num_cpus=0, max_retries=0)(question)
    asked = {}
    for each in ids:
        strategy = NodeAffinitySchedulingStrategy(each, soft=False)
        asked[ask.options(scheduling_strategy=strategy).remote(__version__)] = each
    if not asked:
        return {}
    ready, late = ray.wait(list(asked), num_returns=len(asked), timeout=_PATIENCE_S)
    for reference in late:
        ray.cancel(reference, force=True)
    found = {}
    for reference in ready:
        try:
            found[asked[reference]] = ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            found[asked[reference]] = error
        except ray.exceptions.RayError:  # lost since it was listed
            continue
    return found


def _node(entry: Mapping[str, Any], answer: Any, files: Mapping[str, str]) -> Node:
    """Return the node that Ray lists, and that has answered.

    Args:
        entry: A node of `ray.nodes`.
        answer: The node's version and what `examined` returned there, or what it raised.
        files: Checksums by name of the files that targets are in.

    Raises:
        MeasurementError: Tasks cannot be carried out on the node.
    """
    host = entry.get("NodeManagerHostname") or entry["NodeManagerAddress"]
    if isinstance(answer, Exception):
        cause = getattr(answer, "cause", answer)
        raise MeasurementError(f"node {host} could not say what it is: {cause}")
    version, found = answer
    if found is None:
        has = "has no xsp" if version is None else f"has xsp {version}"
        raise MeasurementError(
            f"node {host} {has}, and this is xsp {__version__}: install the same there, with what "
            f"the models need (pip install 'xsp[ray]=={__version__}')"
        )
    facts, usable, sums = found
    if other := sorted(name for name in files if sums.get(name) != files[name]):
        what = "has another" if other[0] in sums else "has no"
        raise MeasurementError(
            f"node {host} {what} {other[0]}: put the zoo's files there, in the same place, or start"
            " with `ray job submit --working-dir . -- xsp zoo run …`, which takes them there"
        )
    resources = entry["Resources"]
    return Node(
        entry["NodeID"],
        host,
        min(int(resources["CPU"]), len(usable)),
        int(resources.get("GPU", 0)),
        int(resources.get("memory", 0)),
        facts,
        tuple(usable),
    )


@contextmanager
def connected(address: str | None = None) -> Iterator[Any]:
    """Yield the module `ray`, connected to a cluster until the block ends.

    Args:
        address: Address of the cluster, `HOST:PORT`; None: the cluster that this machine is part
            of, or that RAY_ADDRESS names.

    Raises:
        MeasurementError: Ray is not installed, or no cluster answers.
    """
    try:
        import ray  # noqa: PLC0415  # an extra
        from ray._private import worker  # noqa: PLC0415  # no public name keeps Ray quiet
    except ImportError as error:
        raise MeasurementError(
            f"a cluster needs Ray: pip install 'xsp[ray]' ({error}); without --ray the zoo runs on "
            "this machine"
        ) from error
    if address is not None and address.startswith("ray://"):
        raise MeasurementError(
            f"{address} is the address of a Ray client, which cannot receive results one by one: "
            "run xsp on a machine of the cluster, or by `ray job submit`"
        )
    # Ray would print to standard output what its daemons write when a node is lost.
    printing = getattr(worker, "print_to_stdstream", None)
    worker.print_to_stdstream = lambda *_, **__: None
    # Ray's own handler of SIGTERM would stand in place of xsp's, which makes an interruption of it.
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    try:
        _connect(ray, address)
        if main:
            signal.signal(signal.SIGTERM, before)
        yield ray
    finally:
        ray.shutdown()
        if main:
            signal.signal(signal.SIGTERM, before)
        worker.print_to_stdstream = printing


def _connect(ray: Any, address: str | None) -> None:
    try:
        if address:
            host, _, port = address.rpartition(":")
            # Ray itself tries for a minute, and logs each attempt.
            socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
        ray.init(address=address or "auto", log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as error:
        where = f"at {address}" if address else "on this machine"
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise MeasurementError(
            f"no Ray cluster answers {where} ({said[0]}): start one with `ray start --head`, or "
            "give the address of one, as in --ray 10.0.0.1:6379"
        ) from error
