"""Analyses of models: traces in, a table with a row for each model and batch size out.

evaluation.py finds what was evaluated in a trace, on which all of them rest.
"""
