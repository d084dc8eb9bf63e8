"""Kernel level: what ran on devices, and the calls on the host that launched it.

`cupti` is the provider; `occupancy` computes the occupancy of kernels.
"""
