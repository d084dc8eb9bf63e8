"""PyTorch: module calls, operators and training steps in, rows of pipeline, layer and op out.

`provider` arms the recorders: `layer` swaps the code of `torch.nn.Module.__call__`, `step` wraps
backward passes and optimizer steps (both through `entry_point`) and listens to what else a `loop`
does (through `hook`), and `operator` uses PyTorch's profiler (`kineto`, whose clock `anchor`
aligns). `module_path` and `event` make plain records of these, `row`, `operator` and `memory` make
rows. `operand` tells which tensors an operator was given, `scope` where operators of exported,
scripted and traced code come from, and `generated` makes operators of the kernels that
torch.compile generated for the CPU. `watcher` finds evaluations inside a block, and `marker` what
lies between them, with `move`; `state` keeps what a call may change.
"""
