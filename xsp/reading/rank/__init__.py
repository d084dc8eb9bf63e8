"""Joins the traces of all ranks of a distributed program, xsp's own and other tools'."""

from xsp.reading.rank.account import Account
from xsp.reading.rank.joining import joined
from xsp.reading.rank.naming import apart, common_name, listed
from xsp.reading.rank.trouble import warnings_of_all
from xsp.reading.rank.wait import COLLECTIVE_SCHEMA

__all__ = [
    "COLLECTIVE_SCHEMA",
    "Account",
    "apart",
    "common_name",
    "joined",
    "listed",
    "warnings_of_all",
]
