"""What calls of JAX return in; nothing out, when it is ready.

JAX's calls return before their outputs are computed. An evaluation lasts until they are.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

_PLAIN = (type(None), bool, int, float, str, bytes)


class _Local(threading.local):
    last: Any = None


_local = _Local()


def keep(result: Any) -> None:
    """Keep what the last call of a jitted function returned on this thread."""
    _local.last = result


def await_last() -> bool:
    """Wait until what was kept on this thread is ready, and forget it; False if nothing was."""
    result, _local.last = _local.last, None
    if result is None:
        return False
    await_outputs(result)
    return True


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
