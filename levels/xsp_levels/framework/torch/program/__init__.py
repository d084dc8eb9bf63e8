"""Programs around PyTorch models: what a program does in, evaluations and the parts between out.

`watcher` finds evaluations, which are calls (`call`) or training steps. `step` records backward
passes and optimizer steps, `loop` whatever else a loop does, through `hook` and `move`, and
`marker` hands these parts to whoever watches. `state` keeps what a call may change.
"""
