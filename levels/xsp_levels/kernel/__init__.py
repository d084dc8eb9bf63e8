"""Kernel level: what ran on devices, and the calls that put it there."""
