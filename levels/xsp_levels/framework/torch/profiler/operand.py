"""Tells which tensors each operator was given, those in lists too.

Kineto's events say of a list of tensors only that it is one. The tree of the same events, which
Kineto keeps beside them, has the tensors of the list.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

import polars as pl

from xsp.provider import list_column
from xsp.text import element_type

Operands = tuple[tuple[tuple[int, ...] | None, ...], tuple[str | None, ...], tuple[int, ...]]

NO_OPERANDS: Operands = ((), (), ())

_LIST = "TensorList"
_NO_TENSORS = frozenset({"", "Scalar", "ScalarList", _LIST})
_UNSEEN_LIST = "List[Optional[Tensor]]"  # the profiler looks into no list of this type


def operands(
    results: Any, events: Sequence[Any], addresses: Collection[int] = ()
) -> list[Operands]:
    """Return shapes, element types and storages of the tensors given to each event's operator.

    Of tensors in a list that could not be seen, there is one None in the place of all.

    Args:
        results: Kineto's results, recorded with shapes.
        events: The events of the results of which this is asked.
        addresses: Addresses of the storages that are looked for; others are left out.
    """
    given = [tuple(event.dtypes()) for event in events]
    wanted = {
        event.start_ns()
        for event, dtypes in zip(events, given, strict=True)
        if _LIST in dtypes or (addresses and not _NO_TENSORS.issuperset(dtypes))
    }
    seen = _seen(results, wanted) if wanted else {}
    return [
        _operands(event, dtypes, seen.get((event.start_ns(), event.name()), ()), addresses)
        if dtypes
        else NO_OPERANDS
        for event, dtypes in zip(events, given, strict=True)
    ]


def operand_columns(
    given: Sequence[Operands], modules: Mapping[int, tuple[str, ...]]
) -> dict[str, pl.Series]:
    """Return columns of shapes and element types, and of the modules whose parameters were given.

    Args:
        given: What each operator was given.
        modules: Paths of the modules that own a storage, by its address.
    """

    def types(names: Sequence[str | None]) -> list[str | None]:
        return [None if name is None else element_type(name) for name in names]

    def homes(storages: Sequence[int]) -> list[str] | None:
        return sorted({path for at in storages for path in modules.get(at, ())}) or None

    sizes, names, storages = zip(*given, strict=True) if given else ((), (), ())
    texts = pl.List(pl.String)
    return {
        "attr.input_shapes": list_column(sizes, pl.List(pl.List(pl.Int64))),
        "attr.input_dtypes": list_column(names, texts, types),
        "attr.parameters_of": list_column(storages, texts, homes),
    }


def _seen(results: Any, wanted: Collection[int]) -> dict[tuple[int, str], Sequence[Any]]:
    """Return the inputs, by start and name, of operators in the tree that began at some times."""
    found = {}
    tree = getattr(results, "experimental_event_tree", list)  # private, and so may vanish
    rest = list(tree())
    while rest:
        node = rest.pop()
        rest += node.children
        start_ns = node.start_time_ns
        if start_ns in wanted:  # of the many records of memory not even the name is asked
            found[start_ns, node.name] = getattr(node.extra_fields, "inputs", ())
    return found


def _operands(
    event: Any, dtypes: tuple[str, ...], seen: Sequence[Any], addresses: Collection[int]
) -> Operands:
    shapes: list[tuple[int, ...] | None] = []
    types: list[str | None] = []
    for place, (dtype, shape) in enumerate(zip(dtypes, event.shapes(), strict=True)):
        if dtype == _LIST and place < len(seen) and isinstance(seen[place], list):
            shapes += [tuple(tensor.sizes) for tensor in seen[place]]
            types += [str(tensor.dtype).removeprefix("torch.") for tensor in seen[place]]
        elif dtype == _LIST or (not dtype and _is_unseen_list(event.name(), place)):
            shapes.append(None)
            types.append(None)
        elif dtype not in _NO_TENSORS:
            shapes.append(tuple(shape))
            types.append(dtype)
    tensors = [t for each in seen for t in (each if isinstance(each, list) else [each])]
    held = [getattr(tensor, "storage_data_ptr", None) for tensor in tensors] if addresses else []
    return (
        tuple(shapes),
        tuple(types),
        tuple(at for at in held if at and at in addresses),
    )


@lru_cache(maxsize=1 << 12)
def _is_unseen_list(operator: str, place: int) -> bool:
    """Return whether the operator takes a list of optional tensors at that place."""
    import torch  # noqa: PLC0415

    if "::" not in operator:  # a mark of the user's: PyTorch raises on being asked for such a name
        return False
    schemas = torch._C._jit_get_schemas_for_operator(operator)
    return any(
        place < len(schema.arguments) and str(schema.arguments[place].type) == _UNSEEN_LIST
        for schema in schemas
    )
