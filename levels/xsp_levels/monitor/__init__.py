"""Reads energy, power and utilization of devices, and counters of the host, beside the program.

`provider` is xsp's side. It starts `helper`, a process of its own, which samples the sources:
`nvidia`, `amd`, `rapl` and `host`. A helper imports the standard library and its vendor's module
alone, so that it stays small.
"""
