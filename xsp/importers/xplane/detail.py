"""Descriptions of kernels and copies in XPlane's notation in, attributes out.

regs:38 static_shared:0 dynamic_shared:0 grid:160,1,1 block:1024,1,1 occ_pct:50
kind_src:pageable kind_dst:device size:4096 dest:0 async:1
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import polars as pl

_NAME = re.compile(r"^Mem(?:cpy|set)(?P<way>[HDPA]2[HDPA])?", re.IGNORECASE)
_MEMORIES = {"pageable", "pinned", "device", "array", "managed"}


def kernel_attributes(details: pl.Series) -> dict[str, pl.Series]:
    """Return the columns of attributes that the details of kernels tell."""
    return {
        "attr.grid": _each(details, lambda text: _sizes(text, "grid"), pl.List(pl.Int64)),
        "attr.block": _each(details, lambda text: _sizes(text, "block"), pl.List(pl.Int64)),
        "attr.registers": _each(details, lambda text: _number(text, "regs"), pl.Int64),
        "attr.static_shared_bytes": _each(details, _static_bytes, pl.Int64),
        "attr.dynamic_shared_bytes": _each(
            details, lambda text: _number(text, "dynamic_shared"), pl.Int64
        ),
        "attr.occupancy_pct": _each(details, _occupancy_pct, pl.Float64),
    }


def memory_attributes(details: pl.Series) -> dict[str, pl.Series]:
    """Return the columns of attributes that the details of copies and sets tell."""
    return {
        "attr.transfer_bytes": _each(details, lambda text: _number(text, "size"), pl.Int64),
        "attr.source": _each(details, lambda text: _memory(text, "kind_src"), pl.String),
        "attr.destination": _each(details, lambda text: _memory(text, "kind_dst"), pl.String),
    }


def direction(name: str) -> str | None:
    """Return from where to where a copy goes, by its name in the file.

    >>> direction("MemcpyH2D"), direction("MemcpyP2P"), direction("MemcpyOther")
    ('HtoD', 'PtoP', None)
    """
    found = _NAME.match(name)
    way = found["way"] if found else None
    return way.upper().replace("2", "to") if way else None


def _each(details: pl.Series, value_of: Callable[[str], Any], dtype: Any) -> pl.Series:
    """Return the value of each text; `value_of` is called once per distinct text."""
    distinct = details.drop_nulls().unique().to_list()
    values = pl.Series([*(value_of(text) for text in distinct), None], dtype=dtype)
    places = {text: at for at, text in enumerate(distinct)}
    return values.gather(
        details.replace_strict(places, default=len(distinct), return_dtype=pl.Int64)
    )


def _field(text: str, name: str) -> str | None:
    found = re.search(rf"(?:^|\s){name}:(\S+)", text)
    return found[1] if found else None


def _number(text: str, name: str) -> int | None:
    value = _field(text, name)
    return int(value) if value and re.fullmatch(r"\d{1,18}", value) else None


def _sizes(text: str, name: str) -> list[int] | None:
    value = _field(text, name)
    if not value or not re.fullmatch(r"\d{1,18}(,\d{1,18}){2}", value):
        return None
    return [int(each) for each in value.split(",")]


def _static_bytes(text: str) -> int | None:
    """Return the shared memory that a kernel declares, which is `group_mem` on AMD's GPUs."""
    return next(
        (
            size
            for name in ("static_shared", "shm", "group_mem")
            if (size := _number(text, name)) is not None
        ),
        None,
    )


def _occupancy_pct(text: str) -> float | None:
    """Return the theoretical occupancy; 0 stands for unknown."""
    value = _field(text, "occ_pct")
    return (float(value) or None) if value and re.fullmatch(r"\d+(\.\d+)?", value) else None


def _memory(text: str, name: str) -> str | None:
    value = _field(text, name)
    return value.lower() if value and value.lower() in _MEMORIES else None
