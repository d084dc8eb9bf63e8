"""Accounts: a profiled program in, what its rank tells the others out."""

from __future__ import annotations

from xsp.errors import XspError
from xsp.program.block import profile
from xsp.rank import Account, Company


def account_of(profiled: profile, company: Company, failed: str) -> Account:
    """Return what a rank measured, for rank 0.

    Args:
        profiled: The rank's profile, whose block has ended.
        company: What the rank shares with the others.
        failed: What ended the script, where it did not end well.
    """
    rank = company.identity.rank
    try:
        made = profiled.outcome
    except XspError as missing:
        return Account(rank, why=str(missing), failed=failed)
    return Account(
        rank,
        made.program,
        began_ns=made.began_ns,
        trouble=company.agreement.trouble,
        failed=failed,
        rungs=made.rungs,
        collectives=made.collectives,
    )
