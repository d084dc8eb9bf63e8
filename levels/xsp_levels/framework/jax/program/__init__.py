"""Programs that call JAX: calls, and the compiling between them.

`door` is where calls of jitted functions are seen, `watcher` logs them (`call`), after
`compilation` has had them compiled. `output` waits for what calls return.
"""
