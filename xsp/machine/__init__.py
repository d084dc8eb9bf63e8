"""This machine: its folders, files written whole or not at all, and what it does at most."""

from xsp.machine.atomic_file import check_folder, check_writable, replacing, replacing_folder
from xsp.machine.folder import cache_folder, data_folder, state_folder
from xsp.machine.host import is_loopback
from xsp.machine.peak import MachinePeak, keep_peaks, kept_peaks, measure_peaks

__all__ = [
    "MachinePeak",
    "cache_folder",
    "check_folder",
    "check_writable",
    "data_folder",
    "is_loopback",
    "keep_peaks",
    "kept_peaks",
    "measure_peaks",
    "replacing",
    "replacing_folder",
    "state_folder",
]
