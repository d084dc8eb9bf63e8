"""Analyses of layers: a trace in, a table with a row for each layer or type of layer out."""
