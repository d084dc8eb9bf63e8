"""Analyses of structure: each divides a trace's time by operator, call, module or level."""
