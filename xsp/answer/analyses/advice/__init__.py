"""Advises on what to look at next in traces, with evidence and the size of each possible gain."""
