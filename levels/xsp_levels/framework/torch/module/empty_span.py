"""A kind of span in; a layer or an operator that does nothing, to be recorded, out."""

from __future__ import annotations

from functools import partial
from typing import Any

from xsp.level import Kind
from xsp.provider import EmptySpan


def empty_span(kind: Kind) -> EmptySpan | None:
    """Return an empty span of PyTorch's; imports torch.

    None for a kind without one, and where the program has hooks for all modules, or a mode that
    sees every operator: these would see the empty span as well.
    """
    if kind is Kind.LAYER:
        return None if _hooks() else _layer()
    if kind is Kind.OP:
        return None if _modes() else _operator()
    return None


def _layer() -> EmptySpan:
    """Return a module that does nothing; unrecorded it takes what two clock reads around it say."""
    from torch import nn  # noqa: PLC0415

    class EmptyModule(nn.Module):  # type: ignore[misc]
        def forward(self) -> None:
            pass

    module = EmptyModule()
    return EmptySpan(EmptyModule.__name__, module, bare=module)


def _operator() -> EmptySpan:
    """Return an operator that does nothing but return what it was given.

    The span of an operator is the dispatcher's work and the kernel's, not the way from Python to
    the dispatcher and back. `torch.is_conj` goes the same way, and asks no dispatcher.
    """
    import torch  # noqa: PLC0415

    tensor = torch.empty(0, device="cpu")
    operator = partial(torch.resolve_conj, tensor)
    return EmptySpan(
        "aten::resolve_conj", operator, bare=operator, apart=partial(torch.is_conj, tensor)
    )


def _hooks() -> bool:
    from torch.nn.modules import module  # noqa: PLC0415

    kinds = ("forward_pre", "forward", "backward_pre", "backward")
    return any(getattr(module, f"_global_{kind}_hooks") for kind in kinds)


def _modes() -> bool:
    import torch  # noqa: PLC0415

    modes: Any = torch._C
    return bool(modes._len_torch_function_stack() or modes._len_torch_dispatch_stack())
