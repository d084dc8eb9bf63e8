"""Programs around PyTorch models: steps, and the parts between them.

`watcher` finds steps, which are calls (`call`) or training steps. `step` records backward
passes and optimizer steps, `loop` whatever else a loop does. `compiled_function` counts calls of
functions that torch.compile made.
"""
