"""Records XLA's operators with JAX's profiler, and makes rows of the operators and their layers.

`session` records, `anchor` puts the profiler's clock on the measurement's, `hlo` decodes compiled
programs, `scope` and `frame` say which layers an operator is of, and `program` puts that together.
`ending` finds when operators ended, and `row` makes rows.
"""
