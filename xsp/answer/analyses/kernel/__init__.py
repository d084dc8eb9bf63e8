"""Analyses of kernels show what the kernels of a trace compute and move, alone and by layer.

A kernel is a span of the deepest level that the trace shows: what ran on a device, else a call of
a library, else an operator (kernel.py). What the tables derive from operations and bytes is in
intensity.py, what they say of layers in layer.py.
"""
