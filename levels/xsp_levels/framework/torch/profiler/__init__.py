"""PyTorch's profiler: its events in, rows of kind op with shapes and memory out.

`operator` leads through the files: `kineto` runs the profiler, whose clock `anchor` aligns, in
children of a fork as `fork` has it; `event` makes plain records, `operand` tells which tensors an
operator was given. `generated` makes operators of the
kernels that torch.compile generated for the CPU.
"""
