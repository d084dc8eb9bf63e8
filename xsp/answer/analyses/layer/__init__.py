"""Analyses of layers make tables with a row for each layer or type of layer.

row.py makes the rows of layers that all of them rest on, share.py sums and shares of these.
"""
