"""Linux: system calls, waits for a processor or for something else, page faults, and wakers.

`provider` is the entry; it records by performance events (`watch`) as far as they are allowed
(`access`), else by counters (`process`). Records (`record`) become moments (`moment`), these calls
(`call`) and states of threads (`state`).
"""
