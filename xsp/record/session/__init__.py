"""Calls the model in planned passes and keeps raw records; nothing is interpreted.

`Session.visit` arms the providers of a pass, times some steps of the model and keeps what
was recorded. Its way through the files: `registry` finds the providers, `selection` keeps those
that serve the levels asked for, `plan` says which pass comes next, `recorder` visits the pass,
`visit` holds what was asked for and the result; while warming up, `calibration` finds what
recording costs inside of spans. Beside this way: `exclusive` (one measurement at a time),
`environment` (this machine and its software), `disturbance` (what makes its latencies vary) and
`interruption` (page faults, collections of garbage, and waits for work on another thread).
"""

from xsp.record.session.calibration import InsideCost
from xsp.record.session.disturbance import disturbances, observers
from xsp.record.session.environment import (
    THREAD_NUMBERS,
    describe_environment,
    describe_frameworks,
    host_id,
    limited_threads,
    peak_memory_bytes,
    usable_cores,
)
from xsp.record.session.exclusive import exclusively, if_alone
from xsp.record.session.interruption import interrupted, page_faults
from xsp.record.session.plan import Plan
from xsp.record.session.recorder import Session
from xsp.record.session.registry import Listed, installed_providers, listed_providers, registered
from xsp.record.session.selection import Selection, check_energy, select
from xsp.record.session.settings import Settings, schedule, settings_of
from xsp.record.session.visit import Monitored, PlannedVisit, Visit, counting, worth_keeping

__all__ = [
    "THREAD_NUMBERS",
    "InsideCost",
    "Listed",
    "Monitored",
    "Plan",
    "PlannedVisit",
    "Selection",
    "Session",
    "Settings",
    "Visit",
    "check_energy",
    "counting",
    "describe_environment",
    "describe_frameworks",
    "disturbances",
    "exclusively",
    "host_id",
    "if_alone",
    "installed_providers",
    "interrupted",
    "limited_threads",
    "listed_providers",
    "observers",
    "page_faults",
    "peak_memory_bytes",
    "registered",
    "schedule",
    "select",
    "settings_of",
    "usable_cores",
    "worth_keeping",
]
