"""Reads what monitors recorded: energy with its interval, and how busy devices and CPUs were.

`readings` makes one table of what monitors recorded, `energy` finds the energy of a stretch of
time, `attribute` makes attributes of spans of both.
"""

from xsp.reading.monitor.attribute import attributes_of, with_attributes
from xsp.reading.monitor.energy import Energy, energy_of
from xsp.reading.monitor.readings import Monitoring, monitoring_of

__all__ = [
    "Energy",
    "Monitoring",
    "attributes_of",
    "energy_of",
    "monitoring_of",
    "with_attributes",
]
