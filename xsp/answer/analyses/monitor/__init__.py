"""Analyses of what monitors read beside a program: energy, utilization and use of the host."""
