"""Identifies the rank of a process in a distributed program by environment variables.

torchrun sets `RANK`, `WORLD_SIZE` and the address of its store; Open MPI and Slurm have names of
their own for the first two.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

_RANKS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of a process of a distributed program.

    Attributes:
        rank: Number of the process, from 0.
        size: How many processes there are.
        address: Host at which the processes find each other; empty if it is not told.
        port: Port there; 0 if it is not told.
        served: Whether the launcher itself serves a store at that port, as torchrun does.
        run: What tells the run from others at the same store.
    """

    rank: int
    size: int
    address: str = ""
    port: int = 0
    served: bool = False
    run: str = ""

    @property
    def leads(self) -> bool:
        """Whether the other ranks do as this one does."""
        return self.rank == 0

    @property
    def seed(self) -> int:
        """A number that all ranks of the run have, and no other run."""
        told = f"{self.address}:{self.port}/{self.run}/{self.size}"
        return int.from_bytes(blake2b(told.encode(), digest_size=4).digest())

    @property
    def is_told_where(self) -> bool:
        """Whether it is told where the processes find each other."""
        return bool(self.address and self.port)


def identity(environment: Mapping[str, str] | None = None) -> Identity | None:
    """Return which rank this process is; None if it is the only one.

    Args:
        environment: Variables; None for those of this process.

    >>> identity({"RANK": "1", "WORLD_SIZE": "2"}).rank, identity({"RANK": "0", "WORLD_SIZE": "1"})
    (1, None)
    """
    given = os.environ if environment is None else environment
    for rank_name, size_name in _RANKS:
        rank, size = _number(given, rank_name), _number(given, size_name)
        if rank is not None and size is not None:
            if size < 2 or rank >= size:
                return None
            return Identity(
                rank,
                size,
                given.get("MASTER_ADDR", ""),
                _number(given, "MASTER_PORT") or 0,
                given.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
                f"{given.get('TORCHELASTIC_RUN_ID', '')}"
                f"/{given.get('TORCHELASTIC_RESTART_COUNT', '')}",
            )
    return None


def in_process_group() -> bool:
    """Return whether the program has joined a group of several processes by PyTorch."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available():
        return False
    return bool(distributed.is_initialized() and distributed.get_world_size() > 1)


def boot() -> str:
    """Return the id of this machine's boot, which no other machine shares; empty if unknown."""
    try:
        return _BOOT.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _number(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name, "")
    return int(text) if text.isdecimal() else None
