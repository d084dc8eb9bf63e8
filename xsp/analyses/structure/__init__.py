"""Analyses of structure: a trace in, its time by operator, library call, module or level out."""
