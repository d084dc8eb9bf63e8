"""JAX's profiler in; rows of XLA's operators, in the layers that they were written in, out.

`session` records, `anchor` puts the profiler's clock on the measurement's, `hlo` decodes compiled
programs, `scope` and `frame` say which layers an operator is of, and `program` puts that together.
`ending` finds when operators ended, and `row` makes rows.
"""
