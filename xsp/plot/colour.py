"""Colours: a kind of span or the number of a series in, its colour on light and dark pages out.

They are those of Okabe and Ito ("Color Universal Design", 2008), which people tell apart whatever
colours they see, and variants of them that stand out from a dark page. A kind of span has the
same colour in every view.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xsp.level import Kind


@dataclass(frozen=True, slots=True)
class Colour:
    """A colour as `#rrggbb`, on a light page and on a dark one."""

    light: str
    dark: str


KINDS: Mapping[Kind, Colour] = {
    Kind.PIPELINE: Colour("#686f7b", "#7a828f"),
    Kind.LAYER: Colour("#0072b2", "#2b8fd0"),
    Kind.OP: Colour("#56b4e9", "#8fd0f7"),
    Kind.CALL: Colour("#009e73", "#12b886"),
    Kind.LAUNCH: Colour("#f0e442", "#f0e442"),
    Kind.KERNEL: Colour("#d55e00", "#e8702a"),
    Kind.MEMCPY: Colour("#cc79a7", "#e59cc6"),
    Kind.MEMSET: Colour("#e69f00", "#f0b429"),
    Kind.SYNC: Colour("#24272d", "#e3e6ea"),
    Kind.SYSCALL: Colour("#7d1450", "#96105e"),
}

# Of what is no kind of span: traces beside each other, types of layer, causes of idle time.
SERIES: tuple[Colour, ...] = (
    Colour("#0072b2", "#2b8fd0"),
    Colour("#d55e00", "#e8702a"),
    Colour("#009e73", "#12b886"),
    Colour("#cc79a7", "#e59cc6"),
    Colour("#e69f00", "#f0b429"),
    Colour("#56b4e9", "#8fd0f7"),
    Colour("#686f7b", "#7a828f"),
)
