"""Ranks of a distributed program: which one a process is, and how they leave each other bytes."""

from xsp.record.rank.channel import MACHINE, Channel, StoreChannel, awaited, get_large, put_large
from xsp.record.rank.environment import Identity, boot, identity, in_process_group

__all__ = [
    "MACHINE",
    "Channel",
    "Identity",
    "StoreChannel",
    "awaited",
    "boot",
    "get_large",
    "identity",
    "in_process_group",
    "put_large",
]
