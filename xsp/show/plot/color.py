"""Colors of kinds of span, and of series, on light and dark pages.

They are those of Okabe and Ito ("Color Universal Design", 2008), which people tell apart whatever
colors they see, and variants of them that stand out from a dark page. A kind of span has the
same color in every view.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xsp.level import Kind


@dataclass(frozen=True, slots=True)
class Color:
    """A color as `#rrggbb`, on a light page and on a dark one."""

    light: str
    dark: str


KINDS: Mapping[Kind, Color] = {
    Kind.REGION: Color("#686f7b", "#7a828f"),
    Kind.LAYER: Color("#0072b2", "#2b8fd0"),
    Kind.OP: Color("#56b4e9", "#8fd0f7"),
    Kind.CALL: Color("#009e73", "#12b886"),
    Kind.LAUNCH: Color("#f0e442", "#f0e442"),
    Kind.KERNEL: Color("#d55e00", "#e8702a"),
    Kind.MEMCPY: Color("#cc79a7", "#e59cc6"),
    Kind.MEMSET: Color("#e69f00", "#f0b429"),
    Kind.SYNC: Color("#24272d", "#e3e6ea"),
    Kind.SYSCALL: Color("#7d1450", "#96105e"),
}

# Of what is no kind of span: traces beside each other, types of layer, causes of idle time.
SERIES: tuple[Color, ...] = (
    Color("#0072b2", "#2b8fd0"),
    Color("#d55e00", "#e8702a"),
    Color("#009e73", "#12b886"),
    Color("#cc79a7", "#e59cc6"),
    Color("#e69f00", "#f0b429"),
    Color("#56b4e9", "#8fd0f7"),
    Color("#686f7b", "#7a828f"),
)
