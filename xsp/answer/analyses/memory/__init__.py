"""Analyses of memory: each makes a table of the memory that spans hold, allocate or free."""
