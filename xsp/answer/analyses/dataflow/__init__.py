"""Analyses of graphs of operators that take each other's outputs, and may run at once."""
