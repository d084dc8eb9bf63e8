"""Makes rows of operators and derived layers from the events of TensorFlow's profiler.

`operator` leads through the files: `session` runs the profiler and aligns its clock, `row` finds
the operators, `run` the graph runs that they are of, `fusion` what XLA and TensorFlow made of
nodes, and `graph` the layers around. `parameter` tells what depends on weights alone.
"""
