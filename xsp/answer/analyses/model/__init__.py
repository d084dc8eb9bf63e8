"""Analyses of models: each makes a table with a row for each model and batch size.

step.py finds what was evaluated in a trace, on which all of them rest.
"""
