"""Records the operators of jitted JAX functions, inside the layers that the operators belong to.

`profiler` records operators by JAX's profiler and knows XLA's compiled programs; `program` finds
steps, compiles before they begin, and keeps what a call may change.
"""
