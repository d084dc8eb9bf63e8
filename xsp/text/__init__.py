"""Writes quantities and names as text for people."""

from xsp.text.element import element_type
from xsp.text.kernel_name import call_name, full_name, short_name
from xsp.text.name import printable, printable_lines, shorten, writable
from xsp.text.quantity import (
    NOTHING,
    beyond,
    clock_time,
    counted,
    duration,
    estimate,
    known_to,
    margin,
    percent,
    removed,
    share,
    surplus,
)
from xsp.text.suggestion import suggest
from xsp.text.terminal import encodable

__all__ = [
    "NOTHING",
    "beyond",
    "call_name",
    "clock_time",
    "counted",
    "duration",
    "element_type",
    "encodable",
    "estimate",
    "full_name",
    "known_to",
    "margin",
    "percent",
    "printable",
    "printable_lines",
    "removed",
    "share",
    "short_name",
    "shorten",
    "suggest",
    "surplus",
    "writable",
]
