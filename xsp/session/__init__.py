"""Sessions: a plan and providers in, visits with raw records out; nothing is interpreted."""

from xsp.session.environment import THREAD_NUMBERS, describe, limited_threads
from xsp.session.exclusive import exclusively, if_alone
from xsp.session.plan import Plan, Settings, Step, settings_of
from xsp.session.recorder import Session
from xsp.session.selection import Selection, select
from xsp.session.visit import Visit, Window, counting, worth_keeping

__all__ = [
    "THREAD_NUMBERS",
    "Plan",
    "Selection",
    "Session",
    "Settings",
    "Step",
    "Visit",
    "Window",
    "counting",
    "describe",
    "exclusively",
    "if_alone",
    "limited_threads",
    "select",
    "settings_of",
    "worth_keeping",
]
