from __future__ import annotations

import ctypes
import importlib.util
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xsp_levels.kernel.cupti.node import CLONED, CREATED, EVENT, RESOURCE, Lineage, NodeLog
from xsp_levels.native import stub
from xsp_levels.native.symbol import mentions

CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)
NODE_ID = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64))


@NODE_ID  # type: ignore[untyped-decorator]
def node_id(node: int | None, number: ctypes._Pointer[ctypes.c_uint64]) -> int:
    """Number nodes by a tenth of their address, and fail for those without one."""
    if node is None:
        return 1
    number[0] = node // 10
    return 0


def graph_data(node: int, original: int = 0) -> ctypes.Array[ctypes.c_uint64]:
    """Return what CUPTI points to: `CUpti_ResourceData`, behind it `CUpti_GraphData`."""
    data = (ctypes.c_uint64 * 10)()
    data[2] = ctypes.addressof(data) + 3 * 8
    data[5], data[6] = node, original
    return data


def tell(log: NodeLog, what: int, node: int, original: int = 0) -> None:
    data = graph_data(node, original)
    CALLBACK(log.callback)(None, RESOURCE, what, ctypes.addressof(data))


@pytest.fixture
def log() -> NodeLog:
    if reason := stub.unsupported():
        pytest.skip(f"{reason}: run this test on Linux with an x86-64 CPU")
    return NodeLog(stub.address_of(node_id), capacity=64)


def test_a_node_is_noted_with_its_moment_and_thread(log: NodeLog) -> None:
    before = time.monotonic_ns()
    tell(log, CREATED, 70)
    after = time.monotonic_ns()
    (event,), lost = log.take()
    assert before <= event["time"] <= after
    assert event["thread"] == threading.get_native_id()
    assert (event["what"], event["node"], event["original"], lost) == (CREATED, 7, 0, 0)


def test_a_clone_says_what_it_was_cloned_from(log: NodeLog) -> None:
    tell(log, CLONED, 90, 70)
    (event,), _ = log.take()
    assert (event["what"], event["node"], event["original"]) == (CLONED, 9, 7)


def test_what_was_taken_is_gone(log: NodeLog) -> None:
    tell(log, CREATED, 70)
    log.take()
    assert len(log.take()[0]) == 0
    tell(log, CREATED, 80)
    assert log.take()[0]["node"].tolist() == [8]


def test_a_node_that_has_no_number_has_number_0(log: NodeLog) -> None:
    tell(log, CREATED, 0)
    assert log.take()[0]["node"].tolist() == [0]


def test_an_event_without_a_graph_is_passed_over(log: NodeLog) -> None:
    data = (ctypes.c_uint64 * 3)()
    CALLBACK(log.callback)(None, RESOURCE, CREATED, ctypes.addressof(data))
    assert len(log.take()[0]) == 0


def test_without_room_events_are_counted(log: NodeLog) -> None:
    for number in range(70):
        tell(log, CREATED, 10 * number)
    events, lost = log.take()
    assert events["node"].tolist() == list(range(64))
    assert lost == 6
    assert log.take()[1] == 0


def test_threads_do_not_get_into_each_others_way() -> None:
    log = NodeLog(stub.address_of(node_id), capacity=10_000)

    def make(thread: int) -> None:
        for number in range(1000):
            tell(log, CREATED, 10 * (thread * 1000 + number))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(make, range(8)))
    events, lost = log.take()
    assert lost == 0
    assert sorted(events["node"].tolist()) == list(range(8000))


def events(*told: tuple[int, int, int]) -> np.ndarray:
    made = np.zeros(len(told), EVENT)
    for at, (what, node, original) in enumerate(told):
        made[at]["what"], made[at]["node"], made[at]["original"] = what, node, original
    return made


def test_a_clone_of_a_clone_leads_to_what_was_captured() -> None:
    lineage = Lineage()
    lineage.learn(events((CREATED, 1, 0), (CREATED, 2, 0)))
    lineage.learn(events((CREATED, 11, 0), (CLONED, 11, 1), (CLONED, 21, 11), (CREATED, 21, 0)))
    assert lineage.captured([1, 2, 11, 21]) == {1: 1, 2: 2, 11: 1, 21: 1}


def test_clones_are_created_as_well_and_not_captured() -> None:
    lineage = Lineage()
    told = events((CREATED, 1, 0), (CREATED, 11, 0), (CLONED, 11, 1), (CREATED, 0, 0))
    assert lineage.learn(told)["node"].tolist() == [1]


def test_a_number_that_a_new_graph_has_again_is_no_clones_any_more() -> None:
    lineage = Lineage()
    lineage.learn(events((CREATED, 1, 0), (CREATED, 11, 0), (CLONED, 11, 1)))
    assert lineage.learn(events((CREATED, 11, 0)))["node"].tolist() == [11]
    assert lineage.captured([11]) == {11: 11}
    lineage.learn(events((CREATED, 21, 0), (CLONED, 21, 11)))
    assert lineage.captured([21]) == {21: 11}


def test_nodes_without_a_number_are_not_taken_for_each_other() -> None:
    lineage = Lineage()
    lineage.learn(events((CREATED, 0, 0), (CLONED, 0, 0), (CREATED, 11, 0), (CLONED, 11, 0)))
    assert lineage.captured([0, 11]) == {11: 11}


def test_what_nobody_saw_captured_is_not_known() -> None:
    lineage = Lineage()
    lineage.learn(events((CLONED, 11, 1), (CLONED, 5, 6), (CLONED, 6, 5)))
    assert lineage.captured([11, 1, 5, 99]) == {}


@given(st.lists(st.tuples(st.integers(0, 10_000), st.booleans()), min_size=1, max_size=60))
def test_a_forest_of_clones_leads_back_to_its_roots(drawn: list[tuple[int, bool]]) -> None:
    """Node n is captured, or cloned of an earlier one; of clones CUPTI tells twice."""
    root: dict[int, int] = {}
    told: list[list[tuple[int, int, int]]] = []  # the events of each call
    for node, (choice, first) in enumerate(drawn, 1):
        original = choice % node + 1
        created = (CREATED, node * 7919, 0)
        if original == node:
            root[node] = node
            told.append([created])
        else:
            root[node] = root[original]
            cloned = (CLONED, node * 7919, original * 7919)
            told.append([created, cloned] if first else [cloned, created])
    lineage = Lineage()
    half = len(told) // 2
    for calls in (told[half:], told[:half]):
        lineage.learn(events(*(event for call in calls for event in call)))
    known = lineage.captured(node * 7919 for node in root)
    assert known == {node * 7919: first * 7919 for node, first in root.items()}


def test_numbers_and_places_are_those_of_the_real_binding() -> None:
    cupti = pytest.importorskip("cupti.cupti", reason="needs cupti-python: make .venv/.cupti")
    assert int(cupti.CallbackDomain.RESOURCE) == RESOURCE
    assert int(cupti.CallbackIdResource.GRAPHNODE_CREATED) == CREATED
    assert int(cupti.CallbackIdResource.GRAPHNODE_CLONED) == CLONED
    resource, graph = np.dtype(cupti.resource_data_dtype), np.dtype(cupti.graph_data_dtype)
    assert resource.fields is not None
    assert graph.fields is not None
    assert resource.fields["resource_descriptor"][1] == 16
    assert (graph.fields["node"][1], graph.fields["original_node"][1]) == (16, 24)
    assert callable(cupti.enable_callback)


def test_the_real_library_has_every_function_that_is_called_past_the_binding() -> None:
    spec = importlib.util.find_spec("nvidia")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    found = [path for folder in folders for path in Path(folder).glob("*/lib/libcupti.so.*")]
    if not found:
        pytest.skip("needs libcupti: pip install torch, of a build for CUDA")
    for name in (
        "cuptiSubscribe",
        "cuptiGetGraphNodeId",
        "cuptiActivityRegisterCallbacks",
        "cuptiActivityGetNextRecord",
        "cuptiActivityGetNumDroppedRecords",
    ):
        assert mentions(str(found[0]), name), name
