"""Sessions: a plan and providers in, visits with raw records out; nothing is interpreted."""

from xsp.session.disturbance import disturbances
from xsp.session.environment import THREAD_NUMBERS, describe_environment, limited_threads
from xsp.session.exclusive import exclusively, if_alone
from xsp.session.plan import Plan, Settings, Step, settings_of
from xsp.session.recorder import Session
from xsp.session.registry import Listed, installed_providers, listed_providers
from xsp.session.selection import Selection, select
from xsp.session.visit import Visit, Window, counting, worth_keeping

__all__ = [
    "THREAD_NUMBERS",
    "Listed",
    "Plan",
    "Selection",
    "Session",
    "Settings",
    "Step",
    "Visit",
    "Window",
    "counting",
    "describe_environment",
    "disturbances",
    "exclusively",
    "if_alone",
    "installed_providers",
    "limited_threads",
    "listed_providers",
    "select",
    "settings_of",
    "worth_keeping",
]
