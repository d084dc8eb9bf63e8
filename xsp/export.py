"""Exports of traces, and what deliveries are.

The public name of the room `xsp.show.export`.
"""

import sys
from typing import TYPE_CHECKING

from xsp.show import export as room

if TYPE_CHECKING:
    from xsp.show.export import *  # noqa: F403
    from xsp.show.export import __all__ as __all__  # noqa: PLC0414

sys.modules[__name__] = room
