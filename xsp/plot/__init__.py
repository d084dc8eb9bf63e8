"""Plots: tables of analyses in, figures out; and the colours that all views have in common."""

from xsp.plot.colour import KINDS, SERIES, Colour

__all__ = ["KINDS", "SERIES", "Colour"]
