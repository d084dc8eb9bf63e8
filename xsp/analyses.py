"""Analyses of a trace, each a small table.

The public name of the room `xsp.answer.analyses`.
"""

import sys
from typing import TYPE_CHECKING

from xsp.answer import analyses

if TYPE_CHECKING:
    from xsp.answer.analyses import *  # noqa: F403
    from xsp.answer.analyses import __all__ as __all__  # noqa: PLC0414

sys.modules[__name__] = analyses
