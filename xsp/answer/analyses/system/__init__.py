"""Analyses of what the operating system did: waits, system calls, page faults, threads."""
