"""Analyses of layers: a trace in, a table with a row for each layer or type of layer out.

row.py makes the rows of layers that all of them rest on, share.py sums and shares of these.
"""
