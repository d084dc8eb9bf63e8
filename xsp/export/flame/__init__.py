"""Flame graphs: spans in, what ran on each thread and stream as stacks of names out.

`stack` finds what lies on top of what; `speedscope` writes when each stack was open, and `folded`
how long each was open altogether.
"""

from xsp.export.flame import folded, speedscope

__all__ = ["folded", "speedscope"]
