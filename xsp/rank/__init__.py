"""Ranks: the processes of a distributed program in, what they agree on and one trace of all out.

`identity` says which rank a process is (identity.py). Ranks leave bytes for each other in a channel
(channel.py): what to record of which evaluation (agreement.py), and at the end what each measured
(exchange.py); company.py leads through. Rank 0 finds out how long each waited in collectives
(wait.py), and joins all trees to one (joining.py, telling.py). apart.py and trouble.py serve
recordings of other tools as well.
"""

from xsp.rank.agreement import Agreement, Turn
from xsp.rank.apart import apart, common_name, listed
from xsp.rank.channel import Channel, StoreChannel
from xsp.rank.company import Company
from xsp.rank.exchange import Account, collect, hand_over
from xsp.rank.identity import Identity, identity, in_process_group
from xsp.rank.joining import joined
from xsp.rank.trouble import problems_of_all
from xsp.rank.wait import COLLECTIVE_SCHEMA

__all__ = [
    "COLLECTIVE_SCHEMA",
    "Account",
    "Agreement",
    "Channel",
    "Company",
    "Identity",
    "StoreChannel",
    "Turn",
    "apart",
    "collect",
    "common_name",
    "hand_over",
    "identity",
    "in_process_group",
    "joined",
    "listed",
    "problems_of_all",
]
