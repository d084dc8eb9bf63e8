"""Programs that call JAX in; evaluations, and the compiling between them, out.

`door` is where calls of jitted functions are seen, `watcher` hands them over as evaluations
(`call`), after `compilation` has had them compiled. `output` waits for what calls return, and
`state` keeps what a call may change.
"""
