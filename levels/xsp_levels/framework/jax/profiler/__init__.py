"""Records XLA's operators with JAX's profiler, and makes rows of the operators and their layers.

`session` records, and `anchor` puts the profiler's clock on the measurement's. `scope` says which
layers an operator is of, and `program` what each operator of a compiled program is. `row` finds
when operators ended, and makes rows.
"""
