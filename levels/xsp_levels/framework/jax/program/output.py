"""Waits for the outputs of JAX's calls, which return before these are computed."""

from __future__ import annotations

import sys
from typing import Any

_PLAIN = (type(None), bool, int, float, str, bytes)


def await_outputs(result: Any) -> None:
    """Wait until the arrays in a result are ready; returns at once if JAX is not imported.

    Arrays that were given away meanwhile (donated) are left out.
    """
    jax = sys.modules.get("jax")
    if jax is None or isinstance(result, _PLAIN) or not hasattr(jax, "Array"):
        return
    if isinstance(result, jax.Array):
        _await(result)
        return
    for leaf in jax.tree_util.tree_leaves(result):
        if isinstance(leaf, jax.Array):
            _await(leaf)


def _await(array: Any) -> None:
    ready = getattr(array, "is_ready", None)  # tracers, which hold no numbers, have none
    if ready is not None and not array.is_deleted():
        array.block_until_ready()
