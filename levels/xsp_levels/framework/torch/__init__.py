"""PyTorch: module calls, operators and training steps in, rows of pipeline, layer and op out.

`provider` arms the recorders and makes rows of what they recorded: layers (`module`), operators
(`profiler`), and what a program does besides calling its model (`program`).
"""
