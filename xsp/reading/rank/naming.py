"""Gives processes distinct numbers of threads, devices and correlation ids, and lists names."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import polars as pl


def apart(processes: Sequence[Sequence[pl.DataFrame]]) -> list[list[pl.DataFrame]]:
    """Return spans in which no two processes share a thread, a device or a correlation id.

    The numbers of the first process stay as they are, and so do others that are not taken.

    Args:
        processes: Of each process some frames with columns `thread`, `device`, `correlation_id`.
    """
    taken: dict[str, Any] = {"thread": set(), "device": set(), "correlation_id": -1}
    return [_renumbered(frames, taken) for frames in processes]


def _renumbered(frames: Sequence[pl.DataFrame], taken: dict[str, Any]) -> list[pl.DataFrame]:
    changes = []
    for name in ("thread", "device"):
        used = set(pl.concat([frame[name].unique() for frame in frames]).drop_nulls().to_list())
        free = max(used | taken[name], default=0) + 1
        new = {old: free + at for at, old in enumerate(sorted(used & taken[name]))}
        taken[name] |= {new.get(old, old) for old in used}
        changes.append(pl.col(name).replace(new) if new else pl.col(name))
    ids = pl.concat([frame.select("correlation_id") for frame in frames]).to_series()
    if ids.null_count() < len(ids):
        low, high = int(ids.min()), int(ids.max())  # type: ignore[arg-type]
        more = max(taken["correlation_id"] + 1 - low, 0)
        taken["correlation_id"] = high + more
        changes.append(pl.col("correlation_id") + more)
    return [frame.with_columns(changes) for frame in frames]


def common_name(names: Sequence[str]) -> str:
    """Return the beginning that several names share; the first name where there is none.

    >>> common_name(["rank-0", "rank-1"])
    'rank'
    """
    alike = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    return "".join(letters[0] for letters in alike).rstrip("-_. ") or names[0]


def listed(names: Sequence[str]) -> str:
    """Return names as one text, the first eight of them.

    >>> listed(["rank 1", "rank 2"])
    'rank 1, rank 2'
    """
    most = 8
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
