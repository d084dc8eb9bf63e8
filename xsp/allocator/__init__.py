"""Knows the history of PyTorch's CUDA allocator."""

from xsp.allocator.history import UNKNOWN, MemoryHistory, peak_sentence

__all__ = ["UNKNOWN", "MemoryHistory", "peak_sentence"]
