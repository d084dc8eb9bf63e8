"""Nodes: a cluster in, its machines, their cores and the facts that results there rest on out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xsp import __version__
from xsp.errors import MeasurementError
from xsp.sweep import basis_of
from xsp.zoo.cluster.part import Examined
from xsp.zoo.task import Task

_PATIENCE_S = 120.0  # a node that is busy with other jobs answers late


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of the cluster, or the part of one that Ray may use.

    Attributes:
        id: Its id in Ray.
        host: Its name.
        cores: Physical cores that measurements may have.
        gpus: GPUs that Ray may hand out.
        memory_bytes: Memory that Ray may hand out.
        facts: Machine and software, as `machine_facts` says.
        usable: How many cores are usable to a process that holds 1, 2, … of them.
    """

    id: str
    host: str
    cores: int
    gpus: int
    memory_bytes: int
    facts: Mapping[str, str]
    usable: tuple[float, ...]

    def basis(self, task: Task, cores: int) -> dict[str, str]:
        """Return what results of a task rest on that are measured there, on so many cores."""
        facts = {**self.facts, "usable cores": str(self.usable[cores - 1])}
        return basis_of(task.points[0].spec, task.plan, facts)


def nodes_of(
    ray: Any, files: Mapping[str, str], folder: str, known: Collection[str] = ()
) -> tuple[list[Node], dict[str, str]]:
    """Return the nodes that can run tasks, and why others cannot, but for those known already.

    Args:
        ray: The module, connected.
        files: Checksums by name of the files that targets are in.
        folder: Folder in which the driver runs.
        known: Ids of nodes that are not asked again.

    Returns:
        The nodes; and of each that has no xsp, or another version, or lacks a file, the reason by
        its id.
    """
    new = [
        each
        for each in ray.nodes()
        if each["Alive"] and each["Resources"].get("CPU", 0) >= 1 and each["NodeID"] not in known
    ]
    answers = _asked(ray, [each["NodeID"] for each in new], _question(tuple(files), folder))
    found, refused = [], {}
    for each in new:
        answer = answers.get(each["NodeID"])
        if answer is None:  # lost already
            continue
        host = each.get("NodeManagerHostname") or each["NodeManagerAddress"]
        try:
            found.append(_node(each, host, _checked(answer, host, files)))
        except MeasurementError as error:
            refused[each["NodeID"]] = str(error)
    return found, refused


def _node(entry: Mapping[str, Any], host: str, examined: Examined) -> Node:
    resources = entry["Resources"]
    return Node(
        entry["NodeID"],
        host,
        min(int(resources["CPU"]), len(examined.usable)),
        int(resources.get("GPU", 0)),
        int(resources.get("memory", 0)),
        examined.facts,
        examined.usable,
    )


def _asked(ray: Any, ids: Sequence[str], question: Callable[..., Any]) -> dict[str, Any]:
    """Return the answer of each node, by its id; none of nodes that are lost meanwhile."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415

    ask = ray.remote(num_cpus=0, max_retries=0)(question)
    asked = {
        ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(each, soft=False)).remote(
            __version__
        ): each
        for each in ids
    }
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


def _question(files: Sequence[str], folder: str) -> Callable[..., Any]:
    """Return what a node is asked, as a function that needs no xsp there."""

    def examine(version: str) -> Any:
        from importlib import metadata  # noqa: PLC0415

        try:
            found = metadata.version("xsp")
        except metadata.PackageNotFoundError:
            return None, None
        if found != version:
            return found, None
        from xsp.zoo.cluster.part import examined  # noqa: PLC0415

        return found, examined(files, folder)

    return examine


def _checked(answer: Any, host: str, files: Mapping[str, str]) -> Examined:
    """Return what a node said of itself.

    Args:
        answer: Its version and what it is, or what it raised.
        host: Its name.
        files: Checksums by name of the files that targets are in.

    Raises:
        MeasurementError: Tasks cannot be carried out on the node.
    """
    if isinstance(answer, Exception):
        cause = getattr(answer, "cause", answer)
        raise MeasurementError(f"node {host} could not say what it is: {cause}")
    version, examined = answer
    if examined is None:
        has = "has no xsp" if version is None else f"has xsp {version}"
        raise MeasurementError(
            f"node {host} {has}, and this is xsp {__version__}: install the same there, with what "
            f"the models need (pip install 'xsp[ray]=={__version__}')"
        )
    assert isinstance(examined, Examined)
    if other := sorted(name for name in files if examined.files.get(name) != files[name]):
        what = "has another" if other[0] in examined.files else "has no"
        raise MeasurementError(
            f"node {host} {what} {other[0]}: put the zoo's files there, in the same place, or start"
            " with `ray job submit --working-dir . -- xsp zoo run …`, which takes them there"
        )
    return examined
