"""Characterization of model zoos.

The public name of the room `xsp.answer.zoo`.
"""

import sys
from typing import TYPE_CHECKING

from xsp.answer import zoo

if TYPE_CHECKING:
    from xsp.answer.zoo import *  # noqa: F403
    from xsp.answer.zoo import __all__ as __all__  # noqa: PLC0414

sys.modules[__name__] = zoo
