"""Makes rows of operators and derived layers from the events of TensorFlow's profiler.

`operator` leads through the files: `session` runs the profiler, `event` reads what it recorded and
aligns its clock, `row` finds the operators, `run` the graph runs that they are of, `xla` what XLA
made of nodes, and `graph` the layers around. `parameter` tells what depends on weights alone,
`shape` and `detail` what detail runs add, and `tracing` which functions were traced.
"""
