"""Readers of other tools' recordings, and what writers of such readers need.

The public name of the room `xsp.reading.importers`.
"""

import sys
from typing import TYPE_CHECKING

from xsp.reading import importers

if TYPE_CHECKING:
    from xsp.reading.importers import *  # noqa: F403
    from xsp.reading.importers import __all__ as __all__  # noqa: PLC0414

sys.modules[__name__] = importers
