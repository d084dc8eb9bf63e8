"""JAX: calls of jitted functions in, operators of XLA and the layers that they were written in out.

`profiler` records operators by JAX's profiler and knows XLA's compiled programs; `program` finds
evaluations, compiles before they begin, and keeps what a call may change.
"""
