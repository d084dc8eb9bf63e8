"""PyTorch: rows of regions, layer and op of module calls, operators and training steps.

`provider` arms the recorders and makes rows of what they recorded: layers (`module`), operators
(`profiler`), and what a program does besides calling its model (`program`).
"""
