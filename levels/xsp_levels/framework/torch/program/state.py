"""Tensors and generators that a call may write to in; what they were, and the way back, out.

PyTorch counts the writes to a tensor, but not those through `.data`, from other libraries, or to
tensors made in inference mode: so a tensor that was copied is compared with its copy, bit by bit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from xsp.provider import Kept, Role

# Libraries' own objects, large and no state of a model: graphs, caches of compilers, workers.
_CLOSED_PACKAGES = (
    "torch._",
    "torch.amp.",
    "torch.distributed",
    "torch.fx",
    "torch.jit",
    "torch.optim",
    "torch.utils",
)


def role(cls: type) -> Role | None:
    """Return what the objects of a class are to a call, without importing PyTorch."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "nn"):
        return None
    if issubclass(cls, (torch.Tensor, torch.Generator)):
        return Role.VALUE
    if issubclass(cls, torch.nn.Module):
        return Role.MODEL
    if str(cls.__module__).startswith(_CLOSED_PACKAGES) or issubclass(cls, _closed()):
        return Role.CLOSED
    return None


def keep(value: Any, room_bytes: int) -> Kept:
    """Return what a tensor or a generator is now, with a copy of at most `room_bytes`."""
    import torch  # noqa: PLC0415

    return (
        KeptGenerator(value)
        if isinstance(value, torch.Generator)
        else KeptTensor(value, room_bytes)
    )


def parts(model: Any) -> Iterable[tuple[str, Any]]:
    """Return the buffers of a scripted module, which lie outside of Python's objects."""
    torch = sys.modules["torch"]
    return model.named_buffers() if isinstance(model, torch.jit.ScriptModule) else ()


def keep_random() -> Callable[[], None]:
    """Return a function that puts PyTorch's own generators back to where they are now."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "default_generator"):
        return lambda: None
    generators = [torch.default_generator]
    if torch.cuda.is_initialized():
        generators += torch.cuda.default_generators
    states = [generator.get_state() for generator in generators]

    def put_back() -> None:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)

    return put_back


class KeptGenerator:
    """What a generator of random numbers was."""

    nbytes = 0
    trained = False

    def __init__(self, generator: Any) -> None:
        self._generator = generator
        self._state = generator.get_state()

    def changed(self) -> bool:
        """Return whether numbers were drawn since."""
        return not bool((self._generator.get_state() == self._state).all())

    def obstacle(self) -> str:
        """Return an empty text: a generator can always be put back."""
        return ""

    def put_back(self) -> None:
        """Let the generator draw the same numbers again."""
        self._generator.set_state(self._state)


class KeptTensor:
    """What a tensor was: its numbers, where they lie, its gradient, its place in a graph.

    Of a parameter no copy is made: only training writes to parameters.

    Args:
        tensor: The tensor.
        room_bytes: How large the copy may be.
    """

    def __init__(self, tensor: Any, room_bytes: int) -> None:
        import torch  # noqa: PLC0415

        self.trained = isinstance(tensor, torch.nn.Parameter)
        self._tensor = tensor
        self._version = _version(tensor)
        self._requires_grad, self._grad_fn = tensor.requires_grad, tensor.grad_fn
        self._plain = _is_plain(tensor)
        self._size = tensor.nbytes if self._plain else 0
        # Shares memory with the tensor, and keeps the memory if the tensor is given other memory.
        self._alias: Any = tensor.detach() if self._plain else None
        self._place = _place(tensor) if self._plain else None
        copied = self._plain and not self.trained and self._size <= room_bytes
        self._copy = _copy(self._alias) if copied else None
        self.nbytes = self._size if copied else 0
        self._grad = tensor.grad if tensor.is_leaf else None
        room_left = 0 if self.trained else room_bytes - self.nbytes
        self._kept_grad = None if self._grad is None else KeptTensor(self._grad, room_left)

    def changed(self) -> bool:
        """Return whether the tensor or its gradient was written to, or given other memory."""
        if self._requires_grad != self._tensor.requires_grad:
            return True
        return self._moved() or self._written() or self._grad_changed()

    def obstacle(self) -> str:
        """Return why the tensor cannot be put back; empty if it can."""
        if self.trained:
            return "which are parameters" if self._written() else self._grad_obstacle()
        if self._grown_into_graph():
            return "which has become part of a graph of gradients"
        if not self._plain:
            return "which is a tensor that cannot be copied back"
        if self._copy is None and self._size:
            return f"whose {self._size / 1e9:.2g} GB are too many to keep a copy of"
        return self._grad_obstacle()

    def put_back(self) -> None:
        """Write the numbers of the copy back into the same tensor, without a trace in a graph."""
        if self._moved():
            self._tensor.data = self._alias
            self._place = _place(self._tensor)  # resized, its memory may have moved
        if self._copy is not None:
            self._overwrite()
        if self._requires_grad or self._tensor.requires_grad:
            self._leave_graph()
            self._put_back_grad()
        if self._copy is not None:
            self._version = _version(self._tensor)

    def _overwrite(self) -> None:
        # Quick, as it goes before each evaluation: what runs here is in the caches afterwards.
        if self._version is not None:
            self._alias.copy_(self._copy)
            return
        import torch  # noqa: PLC0415

        with torch.inference_mode():  # where alone such a tensor may be written to
            self._alias.copy_(self._copy)

    def _moved(self) -> bool:
        return self._plain and self._place != _place(self._tensor)

    def _written(self) -> bool:
        if self._version != _version(self._tensor):
            return True
        return self._copy is not None and _differ(self._alias, self._copy)

    def _leave_graph(self) -> None:
        tensor = self._tensor
        if tensor.grad_fn is not None and not self._requires_grad:
            tensor.detach_()
        elif tensor.is_leaf and tensor.requires_grad != self._requires_grad:
            tensor.requires_grad_(self._requires_grad)

    def _put_back_grad(self) -> None:
        if self._tensor.is_leaf and self._tensor.grad is not self._grad:
            self._tensor.grad = self._grad
        if self._kept_grad is not None and self._kept_grad.changed():
            self._kept_grad.put_back()

    def _grad_changed(self) -> bool:
        if self._tensor.is_leaf and self._tensor.grad is not self._grad:
            return True
        return self._kept_grad is not None and self._kept_grad.changed()

    def _grad_obstacle(self) -> str:
        kept = self._kept_grad
        return kept.obstacle() if kept is not None and kept.changed() else ""

    def _grown_into_graph(self) -> bool:
        tensor = self._tensor
        if tensor.grad_fn is None or self._version == _version(tensor):
            return False
        if self._requires_grad:
            return tensor.grad_fn is not self._grad_fn
        return bool(tensor._is_view())  # only a tensor with memory of its own can be detached


def _closed() -> tuple[type, ...]:
    torch = sys.modules["torch"]
    data = sys.modules.get("torch.utils.data")
    return (torch.optim.Optimizer, *((data.Dataset, data.DataLoader) if data else ()))


def _is_plain(tensor: Any) -> bool:
    """Return whether a tensor is numbers in memory, which can be copied and compared."""
    import torch  # noqa: PLC0415

    return bool(
        tensor.layout is torch.strided
        and not tensor.is_quantized
        and not tensor.is_meta
        and not torch.nn.parameter.is_lazy(tensor)
    )


def _place(tensor: Any) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride()


def _version(tensor: Any) -> int | None:
    return None if tensor.is_inference() else int(tensor._version)


def _copy(tensor: Any) -> Any:
    import torch  # noqa: PLC0415

    with torch.no_grad():
        return tensor.clone()


def _differ(one: Any, other: Any) -> bool:
    import torch  # noqa: PLC0415

    with torch.no_grad():
        return not torch.equal(_bits(one), _bits(other))


def _bits(tensor: Any) -> Any:
    import torch  # noqa: PLC0415

    shown = tensor.resolve_conj().resolve_neg()  # a view may carry negation as a flag only
    return shown.contiguous().reshape(-1).view(torch.uint8)
