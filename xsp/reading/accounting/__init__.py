"""Charges to spans what the operating system did for their threads: waits, faults, system calls."""

from xsp.reading.accounting.charge import NAMES, THREADS, charges, thread_charges
from xsp.reading.accounting.step import with_accounts
from xsp.reading.accounting.system_call import (
    CALLS,
    fold_calls,
    of_workers,
    with_call_rows,
)
from xsp.reading.accounting.timeline import TIMELINE, thread_timeline

__all__ = [
    "CALLS",
    "NAMES",
    "THREADS",
    "TIMELINE",
    "charges",
    "fold_calls",
    "of_workers",
    "thread_charges",
    "thread_timeline",
    "with_accounts",
    "with_call_rows",
]
