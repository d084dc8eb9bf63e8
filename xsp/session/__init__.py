"""Sessions: a plan and providers in, visits with raw records out; nothing is interpreted.

`Session.visit` arms the providers of a rung, times some evaluations of the model and keeps what
was recorded. Its way through the files: `registry` finds the providers, `selection` keeps those
that serve the levels asked for, `plan` says which rung comes next, `recorder` visits the rung,
`visit` holds what was asked for and the result; while warming up, `calibration` finds what
recording costs inside of spans. Beside this way: `exclusive` (one measurement at a time),
`environment` (this machine and its software), `disturbance` (what makes its latencies vary) and
`interruption` (page faults, collections of garbage, and waits for work on another thread).
"""

from xsp.session.calibration import InsideCost
from xsp.session.disturbance import disturbances
from xsp.session.environment import (
    THREAD_NUMBERS,
    describe_environment,
    describe_frameworks,
    host_id,
    limited_threads,
    peak_memory_bytes,
    usable_cores,
)
from xsp.session.exclusive import exclusively, if_alone
from xsp.session.interruption import Collections, NotedLock, interrupted, page_faults
from xsp.session.plan import Plan
from xsp.session.recorder import Session
from xsp.session.registry import Listed, installed_providers, listed_providers, registered
from xsp.session.selection import Selection, select
from xsp.session.settings import Settings, schedule, settings_of
from xsp.session.visit import PlannedVisit, Visit, counting, worth_keeping

__all__ = [
    "THREAD_NUMBERS",
    "Collections",
    "InsideCost",
    "Listed",
    "NotedLock",
    "Plan",
    "PlannedVisit",
    "Selection",
    "Session",
    "Settings",
    "Visit",
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
    "page_faults",
    "peak_memory_bytes",
    "registered",
    "schedule",
    "select",
    "settings_of",
    "usable_cores",
    "worth_keeping",
]
