from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xsp_levels.kernel.cupti.node import CLONED, CREATED, EVENT, RESOURCE, Lineage
from xsp_levels.native.symbol import mentions


def events(*told: tuple[int, int, int]) -> np.ndarray:
    made = np.zeros(len(told), EVENT)
    for at, (what, node, original) in enumerate(told):
        made[at]["what"], made[at]["node"], made[at]["original"] = what, node, original
    return made


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
