"""The basis of a zoo's results: facts that they rest on in, one text and the machine out.

They are those of a sweep's results. Which limit ended a measurement is one more, of such alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

_ID, _SHORT = "host id", 8  # digits: enough to tell thousands of machines apart


def text_of(basis: Mapping[str, str]) -> str:
    """Return a basis as one text, the same for the same facts."""
    return json.dumps(dict(basis), sort_keys=True)


def machine_of(basis: Mapping[str, str]) -> str | None:
    """Return the short id of the machine that results rest on; None where it is not known.

    >>> machine_of({"host id": "0123456789abcdef"})
    '01234567'
    """
    known = basis.get(_ID)
    return known[:_SHORT] if known else None
