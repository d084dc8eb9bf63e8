"""Analyses of memory: a trace in, what held, allocated and freed it out."""
