"""Results of one trace are computed once, and kept no longer than the trace."""

from __future__ import annotations

import gc
import weakref

from samples import op, pipeline, trace

from xsp.analyses.kept import once_per_trace
from xsp.analyses.tree import Tree


class Result:
    """Something that can be referred to weakly."""


def test_a_result_is_computed_once_for_each_trace() -> None:
    computed = []

    @once_per_trace
    def names(tree: Tree) -> list[str]:
        computed.append(tree)
        return tree.spans["name"].to_list()

    one, other = trace(pipeline("one")), trace(pipeline("other", op("aten::add")))
    assert [names(Tree.of(one)), names(Tree.of(other)), names(Tree.of(one))] == [
        ["one"],
        ["other", "aten::add"],
        ["one"],
    ]
    assert len(computed) == 2


def test_what_is_kept_ends_with_the_trace() -> None:
    @once_per_trace
    def result(tree: Tree) -> Result:
        return Result()

    seen = trace(pipeline("predict"))
    kept = weakref.ref(result(Tree.of(seen)))
    assert kept() is result(Tree.of(seen))
    del seen
    gc.collect()
    assert kept() is None
