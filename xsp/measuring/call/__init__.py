"""Measures a call: makes it again and again, as each pass of the ladder asks (`xsp.measure`)."""

from xsp.measuring.call.callable import interpret_session, measure, visit_all
from xsp.measuring.call.content import Contents, arguments_of
from xsp.measuring.call.recording import Recording, load, record, warning_sentences
from xsp.measuring.call.repeat import (
    carry_out,
    check_function,
    check_no_generator,
    iterator_type,
    name_of,
    read_arguments,
)

__all__ = [
    "Contents",
    "Recording",
    "arguments_of",
    "carry_out",
    "check_function",
    "check_no_generator",
    "interpret_session",
    "iterator_type",
    "load",
    "measure",
    "name_of",
    "read_arguments",
    "record",
    "visit_all",
    "warning_sentences",
]
