"""Makes random arrays for the inputs that a model in a file declares; refuses other settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xsp.errors import UnknownTargetError
from xsp.measuring.target.spec import Spec, Value
from xsp.text import suggest


@dataclass(frozen=True, slots=True)
class Declared:
    """An input as a model declares it.

    Attributes:
        name: Its name.
        dtype: NumPy's name of its element type.
        shape: For each dimension its size, its name where the size is free, or None where the
            dimension is free and has no name.
    """

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]

    def __str__(self) -> str:
        """Return the input as a message names it: `tokens (int64, batch×length)`."""
        return f"{self.name} ({self.dtype}, {'×'.join(str(each or '?') for each in self.shape)})"


def refuse(spec: Spec, *, train: str, compiled: str, precision: str) -> None:
    """Refuse settings that a model in a file does not take; each argument says why not.

    Raises:
        UnknownTargetError: One of them was asked for.
    """
    why = {"--train": train, "--compile": compiled, "--precision": precision}
    for option, is_asked in zip(why, (spec.train, spec.compiled, spec.precision), strict=True):
        if is_asked:
            raise UnknownTargetError(
                f"{spec.target} takes no {option}: {why[option]}; leave it out"
            )


def random_inputs(
    spec: Spec, declared: Sequence[Declared], own: Sequence[str] = ()
) -> dict[str, Any]:
    """Return random numbers for each input, by the input's name.

    Real numbers lie between 0 and 1; whole numbers are 0 or 1, which index any table.

    Args:
        spec: The specification, whose settings say the sizes that the model leaves free: `batch`
            the first of the first input, others by their names, or by the input's name.
        declared: The inputs.
        own: Settings that are no sizes.

    Raises:
        UnknownTargetError: A size is missing, wrong, or none that the model leaves free.
    """
    sizes = _sizes(spec, declared, own)
    numbers = np.random.default_rng(0)
    return {
        each.name: _filled(spec, numbers, each, [sizes.get(key) for key in _keys(each)])
        for each in declared
    }


def _keys(each: Declared) -> Iterator[str | int]:
    """Yield for each dimension what its size is found by; its size where that is fixed."""
    for axis, size in enumerate(each.shape):
        if isinstance(size, int):
            yield size
        elif axis == 0 and size is None:
            yield ""  # a batch without a name
        else:
            yield size or each.name


def _sizes(
    spec: Spec, declared: Sequence[Declared], own: Sequence[str]
) -> Mapping[str | int | None, int | None]:
    """Return the size behind each of `_keys`.

    Raises:
        UnknownTargetError: A size is missing, wrong, or none that the model leaves free.
    """
    keys = [key for each in declared for key in _keys(each)]
    free = list(dict.fromkeys(key for key in keys if isinstance(key, str)))
    leading = next((next(_keys(each)) for each in declared if each.shape), None)
    batch = leading if isinstance(leading, str) else ""
    settings = {name: value for name, value in spec.inputs if name not in own}
    if batch in settings:
        raise UnknownTargetError(f"{spec.target}: {batch} is the batch: --batch {settings[batch]}")
    _check_settings(spec, settings, [key for key in free if key not in ("", batch)], own)
    if spec.batch and batch not in free and spec.batch != leading:
        fixed = f"of {leading}" if leading is not None else "and no input"
        raise UnknownTargetError(
            f"{spec.target} has a fixed batch {fixed}, so it takes no --batch {spec.batch}; its "
            f"inputs: {', '.join(map(str, declared))}"
        )
    sizes: dict[str | int | None, int | None] = {key: key for key in keys if isinstance(key, int)}
    sizes |= {name: int(value) for name, value in settings.items()}
    sizes |= dict.fromkeys(("", batch), spec.batch or 1)
    missing = [str(key) for key in free if key not in sizes]
    if missing:
        asked = " ".join(f"--set {name}=…" for name in missing)
        raise UnknownTargetError(
            f"{spec.target} has dynamic input sizes ({', '.join(map(str, declared))}). "
            f"Set them: {asked}"
        )
    return sizes


def _check_settings(
    spec: Spec, settings: Mapping[str, Value], free: Sequence[str], own: Sequence[str]
) -> None:
    for name, value in settings.items():
        if name not in free:
            known = (*free, *own)
            takes = f"it takes {', '.join(known)}" if known else "all its sizes are fixed"
            raise UnknownTargetError(
                f"{spec.target} takes no setting {name!r}{suggest(name, known)}; {takes}"
            )
        if type(value) is not int or value < 1:
            raise UnknownTargetError(
                f"{spec.target}: {name}={value!r} is no size: a whole number from 1"
            )


def _filled(
    spec: Spec, numbers: np.random.Generator, each: Declared, shape: Sequence[int | None]
) -> Any:
    sizes = [size or 0 for size in shape]
    kind = np.dtype(each.dtype).kind if each.dtype in _NUMPY else each.dtype
    if kind == "f":
        return numbers.random(sizes, np.float32).astype(each.dtype)
    if kind in "iub":
        return numbers.integers(0, 2, sizes).astype(each.dtype)
    raise UnknownTargetError(
        f"{spec.target} takes {each}, which xsp has no random values for: call the model in a "
        "function of your own, and measure path.py:function"
    )


_NUMPY = (
    *("float16", "float32", "float64", "bool"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
)
