"""Advice: traces in, what to look at next, with evidence and the size of the gain out."""
