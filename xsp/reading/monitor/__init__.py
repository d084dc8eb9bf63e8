"""Reads what monitors recorded: energy with its interval, and how busy devices and CPUs were.

`readings` makes one table of what monitors recorded, `energy` finds the energy of a stretch of
time, `regression` that of parts that take turns; `attribute` makes attributes of spans of these.
"""

from xsp.reading.monitor.attribute import (
    MEANS,
    SETTLE_NS,
    attributes_of,
    part_attributes,
    with_attributes,
)
from xsp.reading.monitor.energy import Energy, energy_of
from xsp.reading.monitor.readings import Monitoring, monitoring_of
from xsp.reading.monitor.regression import layer_energies, regressed

__all__ = [
    "MEANS",
    "SETTLE_NS",
    "Energy",
    "Monitoring",
    "attributes_of",
    "energy_of",
    "layer_energies",
    "monitoring_of",
    "part_attributes",
    "regressed",
    "with_attributes",
]
