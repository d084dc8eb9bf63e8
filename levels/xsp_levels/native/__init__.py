"""Tools that several providers share to observe native code.

Events of the kernel (`event_ring`, `perf_event`, `uprobe`), places of functions (`mapping`,
`symbol`), callbacks in machine code (`stub`, `reserved_memory`), standard output and error
(`stdout_tap`, `stderr_filter`), numbers of threads (`thread`), clocks (`alignment`) and forked
children (`forked_child`).
"""
