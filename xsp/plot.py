"""Plots of analyses.

The public name of the room `xsp.show.plot`.
"""

import sys
from typing import TYPE_CHECKING

from xsp.show import plot

if TYPE_CHECKING:
    from xsp.show.plot import *  # noqa: F403
    from xsp.show.plot import __all__ as __all__  # noqa: PLC0414

sys.modules[__name__] = plot
