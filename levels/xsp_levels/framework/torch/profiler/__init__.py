"""PyTorch's profiler, whose events become rows of kind op with shapes and memory.

`operator` leads through the files: `kineto` runs the profiler, `event` makes plain records and
aligns their clock, `operand` tells which tensors an operator was given.
"""
